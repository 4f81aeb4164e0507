"""A record without a valid signature is counted, logged a few times, and changes nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from streams.controller.control_topics import ControlTopics
from streams.invalid_records import Forgeries, Poison
from streams.ports.telemetry_signed import read_signed
from topics.codec import encode
from topics.keys import Keys, Principal, credential
from topics.macs import Signer, Verifier
from topics.records import Control, DeclaredService, Status, Telemetry
from topics.signing import Refusal
from topics.topic_table import key_of, topic_of

CLUSTER = "c" * 32
NOW_MS = 1_753_000_000_000
RECORDS = [
    Status("n1", "r/p/owned", "e", 0, 1000),
    DeclaredService("m", "slo: {ttft: 1s}", 1000),
    Control("m", "pause", False, "eve", "", 1000),
]


class Reader:
    """The control topics of a controller. Returns the result for each record."""

    def __init__(self, keys: Keys) -> None:
        self.records: list[Any] = []
        self.gone: list[tuple[str, str]] = []
        self.poison: list[Poison] = []
        self.verifier = Verifier(keys)
        self._topics = ControlTopics(
            "", "", {}, lambda _topic, record, *_: self.records.append(record),
            lambda topic, key: self.gone.append((topic, key)), self.poison.append,
            verifier=self.verifier,
        )  # fmt: skip

    def read(self, topic: str, key: bytes, value: bytes | None, headers: Any = ()) -> None:
        message = SimpleNamespace(
            key=key, value=value, headers=headers, timestamp=NOW_MS, partition=0, offset=7
        )
        self._topics._fold(topic, message)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: topic_of(record).name)
def test_external_records_count_only_with_a_valid_signature(record: Any) -> None:
    """Unsigned records, records signed with an unknown key and unsigned tombstones are refused.
    Without configured keys all records count.
    """
    topic, key, value = topic_of(record).name, key_of(record) or b"", encode(record)
    reader = Reader(Keys(CLUSTER))
    for keys in (Keys(), Keys("x" * 32)):
        for body in (value, None):
            reader.read(topic, key, body, Signer(keys, lambda: NOW_MS).headers(topic, key, body))
    assert not reader.records and not reader.gone and len(reader.poison) == 4
    assert sum(reader.verifier.refused.values()) == 4
    signer = Signer(Keys(CLUSTER), lambda: NOW_MS)
    reader.read(topic, key, value, signer.headers(topic, key, value))
    reader.read(topic, key, None, signer.headers(topic, key, None))
    assert reader.records == [record] and reader.gone == [(topic, key.decode())]
    trusting = Reader(Keys())
    trusting.read(topic, key, value)
    trusting.read(topic, key, None)
    assert trusting.records == [record] and trusting.gone == [(topic, key.decode())]


def test_a_node_cannot_report_another_nodes_status() -> None:
    """The key of a node is valid only for its own record key, whatever node the body names."""
    other = encode(Status("n2", "r/p/owned", "e", 0, 1000))
    node = Keys(node=credential(CLUSTER, Principal.NODE, "n1"))
    reader = Reader(Keys(CLUSTER))
    reader.read(
        "status", b"n1", other, Signer(node, lambda: NOW_MS).headers("status", b"n1", other)
    )
    assert not reader.records
    assert reader.verifier.refused == {("status", Refusal.MISADDRESSED): 1}


def telemetry(gateway: str) -> bytes:
    return encode(Telemetry("m", gateway, "b", 1, 1000, 1000, 0, 3, *[0] * 9))


def test_a_gateway_reports_only_for_itself() -> None:
    """It also reports for its workers. The other records of the batch keep their positions,
    including invalid ones.
    """
    signer = Signer(Keys(gateway=credential(CLUSTER, Principal.GATEWAY, "a")), lambda: NOW_MS, "a")
    values = [telemetry("a"), telemetry("b"), b"rubbish", telemetry("a.w3"), telemetry("a")]
    headers: list[Any] = [tuple(signer.headers("telemetry", None, value)) for value in values]
    headers[4] = ()
    verifier = Verifier(Keys(CLUSTER))
    found = read_signed(values, headers, [NOW_MS] * 5, verifier)
    assert [name[1] for name in found.records.names] == ["a", "a.w3"]
    assert found.places == [0, 3] and list(found.bad) == [2]
    assert found.refused == {1: Refusal.MISADDRESSED, 4: Refusal.UNSIGNED}
    trusting = read_signed(values, headers, [NOW_MS] * 5, Verifier(Keys()))
    assert trusting.places == [0, 1, 3, 4] and not trusting.refused


def test_dead_letters_of_forgeries_are_bounded() -> None:
    """At most twenty dead letters are written per minute and topic. So a flood in one topic hides
    no invalid record of another."""
    told: list[Poison] = []
    now_s = 0.0
    forgeries = Forgeries(told.append, lambda: now_s)
    for _ in range(1000):
        forgeries.tell(Poison("status", 0, 1, b"", "not signed"))
    assert len(told) == 20
    forgeries.tell(Poison("routes", 0, 1, b"", "not signed"))
    assert told.pop().topic == "routes"
    now_s = 61.0
    for _ in range(1000):
        forgeries.tell(Poison("status", 0, 1, b"", "not signed"))
    assert len(told) == 40
