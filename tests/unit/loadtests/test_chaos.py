"""Parts of the chaos run: the relay, the schedule of faults, and the report."""

from __future__ import annotations

import asyncio
import json
import random
import struct
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.protocol.metadata import MetadataResponse_v1

from autoscaler.estimate.windows import Stats
from loadtests.chaos import report
from loadtests.chaos.__main__ import main
from loadtests.chaos.broker_relay import Relay
from loadtests.chaos.run import Outcome, line
from loadtests.chaos.script import FAULTS, order
from loadtests.chaos.watch import Topics
from loadtests.extreme import WRITER
from loadtests.session_load import Request
from topics.checks import MAX_MS
from topics.codec import encode
from topics.fleet import Assignment
from topics.telemetry import Telemetry


async def fake_broker() -> tuple[asyncio.Server, str]:
    """(server, address) of a fake broker. It answers every Metadata request
    with another address.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            size = struct.unpack(">i", await reader.readexactly(4))[0]
            correlation = struct.unpack_from(">hhi", await reader.readexactly(size))[2]
            body = MetadataResponse_v1([(7, "elsewhere", 1, None)], 7, []).encode()
            writer.write(struct.pack(">ii", 4 + len(body), correlation) + body)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    return server, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def ask(relay: Relay) -> Any:
    host, _, port = relay.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(struct.pack(">ihhi", 8, 3, 1, 41))
    try:
        size = struct.unpack(">i", await reader.readexactly(4))[0]
        frame = await reader.readexactly(size)
    finally:
        writer.close()
    return MetadataResponse_v1.decode(BytesIO(frame[4:]))


async def test_a_client_behind_the_relay_learns_only_the_address_of_the_relay() -> None:
    """The relay replaces the broker's address in answers. A cut of the relay then separates the
    client from the broker.
    """
    server, address = await fake_broker()
    relay = Relay(address)
    await relay.open()
    try:
        answer = await ask(relay)
        assert [(host, str(port)) for _, host, port, _ in answer.brokers] == [
            tuple(relay.address.split(":"))
        ]
        relay.cut()
        with pytest.raises((asyncio.IncompleteReadError, OSError)):
            await ask(relay)
        relay.heal()
        assert (await ask(relay)).brokers
    finally:
        await relay.close()
        server.close()


def test_each_round_has_every_fault_once_in_an_order_given_by_the_seed() -> None:
    """With the embedded broker, faults that need a real broker are left out. Only processes that
    restart are killed.
    """
    first = order(random.Random(1), embedded=False, killable=True)
    assert sorted(f.name for f in first) == sorted(f.name for f in FAULTS)
    assert first == order(random.Random(1), embedded=False, killable=True)
    unkilled = {f.name for f in order(random.Random(1), embedded=False)}
    assert {f.name for f in FAULTS} - unkilled == {"broker killed", "broker stopped"}
    assert unkilled - {f.name for f in order(random.Random(1), True)} == {
        "leadership deleted",
        "topic deleted",
    }


def outcome(*broken: str) -> Outcome:
    return Outcome("pause", "25", "operator", 5.0, 15.0, 1.0, 10.0, 0.5, broken=list(broken))


def test_the_report_shows_each_fault_with_its_duration_and_its_cost(tmp_path: Path) -> None:
    """The report has a table, a picture and figures."""
    failed = Request("chat", "gateway-a", 107.0, 1.0, 502, "gone")
    apart = Request("chat", "gateway-a", 117.0, 1.0, 0, "TimeoutError")
    chaos: Any = SimpleNamespace(
        outcomes=[outcome(), outcome("the fleet was <changed>")],
        requests=[failed, apart],
        began_s=100.0,
    )
    page, figures = report.write(chaos, tmp_path, "seed 1")
    text = page.read_text()
    assert "the fleet was &lt;changed&gt;" in text and text.count("#c0392b") == 3
    assert '"broken": 1' in figures.read_text() and '"failed": 2' in figures.read_text()
    lost = json.loads(figures.read_text())["lost"]
    assert [(one["said"], one["during"]) for one in lost] == [
        ("502 gone", "pause"),
        ("0 TimeoutError", ""),
    ]
    assert "BROKEN" in line(outcome("x"), 1, 0.0) and "held" in line(outcome(), 1, 0.0)


@pytest.mark.parametrize(
    "words",
    [
        ["--minutes", "0"],
        ["--only", "rain"],
        ["--only", "leadership deleted"],
        ["--only", "broker killed"],
        ["--kill-broker", "--broker", "127.0.0.1:1"],
    ],
)
def test_impossible_options_are_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2


def test_a_deleted_key_has_no_last_record() -> None:
    """The leader deletes assignments of undeclared nodes. They then have no leader token."""
    topics = Topics()
    topics.assignments["nowhere"] = Assignment("nowhere", "pool", 1, 10**6, 1)
    topics._take("assignments", SimpleNamespace(key=b"nowhere", value=None))
    assert topics.assignments == {}


def test_extreme_telemetry_does_not_count_in_the_reference() -> None:
    """Otherwise its time would advance the observer's windows beyond all true records."""
    topics = Topics()
    for gateway, end_ms in (("gateway-a", 1_800_000_000_000), (WRITER, MAX_MS)):
        record = Telemetry("chat", gateway, "b", 1, end_ms, 1000, 0, 3, *(0,) * 9)
        topics._take("telemetry", SimpleNamespace(key=b"chat", value=encode(record)))
    stats = topics.windows.stats("chat", 1_800_000_000_000, 60)
    assert isinstance(stats, Stats) and stats.arrivals == 3
