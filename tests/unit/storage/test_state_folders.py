"""State of gateways and executors on a disk that fails: reported, and readable before and after."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from executors.gateway.gateway_metrics import GatewayMetrics
from executors.gateway.model_meter import ModelMeter
from executors.gateway.route_table import RouteTable, _replace
from executors.gateway.telemetry_spool import TelemetrySpool
from executors.node.node_state import NodeState
from executors.node.state_store import StateStore
from tests.unit.storage.faulty_disk import Fault, FaultyDisk, Killed, disk
from topics.codec import encode
from topics.records import Assignment, Endpoint, RouteGroup, Routes, Telemetry
from topics.storage.checked_lines import checked_line

FAULTS = [Fault.FULL, Fault.BROKEN, Fault.SHORT]


def telemetry(number: int) -> Telemetry:
    return ModelMeter().report("chat", "g", "boot", number, 1000 * number, 1000, 1)


def drained(spool: TelemetrySpool) -> list[int]:
    sequences = []
    while found := spool.oldest():
        sequences += [record.sequence for record in found[1]]
        spool.remove(found[0])
    return sequences


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("first", range(1, 21))
def test_the_spool_has_every_record_that_was_accepted(
    fault: Fault, first: int, tmp_path: Path
) -> None:
    """A refused record stays in the gateway's memory, so it may be written again."""
    spool, accepted = TelemetrySpool(tmp_path), []
    with disk(FaultyDisk(fault, first, first + 2, seed=first)):
        for number in range(1, 7):
            with contextlib.suppress(OSError, Killed):
                spool.append([telemetry(number)])
                accepted.append(number)
    spool = TelemetrySpool(tmp_path)
    spool.append([telemetry(7)])
    found = drained(spool)
    assert set(accepted) | {7} <= set(found) and found == sorted(found)
    assert spool.dropped <= 1


def routes(model: str) -> Routes:
    group = RouteGroup("g", 1.0, (Endpoint(f"{model}.1", "10.0.0.1:8000"),))
    return Routes(model, 1, 1, 1_000, 500.0, 50.0, (group,))


def test_a_damaged_line_loses_the_routes_of_one_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A changed digit of an address would still be valid JSON."""
    path = tmp_path / "routes.jsonl"
    lines = [checked_line(encode(routes(model))) for model in ("a", "b", "c")]
    _replace(path, lines[0] + lines[1].replace(b"10.0.0.1", b"10.0.0.9") + lines[2])
    table = RouteTable(GatewayMetrics(), tmp_path, 0.0)
    assert table.load() == 2 and set(table.routers) == {"a", "c"}
    assert "1 damaged lines are skipped, 2 routes are loaded" in caplog.text


@pytest.mark.parametrize("fault", FAULTS)
def test_the_state_of_a_node_is_its_last_one_that_was_saved(fault: Fault, tmp_path: Path) -> None:
    for first in range(1, 25):
        folder = tmp_path / f"{first}"
        store = StateStore(folder)
        store.open()
        saved = 0
        with disk(FaultyDisk(fault, first, first + 3, seed=first)):
            for generation in range(1, 7):
                assignment = Assignment("n0", "p", generation, 1, 1_000)
                if store.save(NodeState("n0", "p", assignment=assignment), {}):
                    saved = generation
                    assert store.fault == ""
                else:
                    assert "cannot write" in store.fault
        found, _ = store.restore(NodeState("n0", "p"))
        assert found.assignment is not None and found.assignment.generation == saved
        store.close()


def test_a_damaged_state_is_reported_and_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = StateStore(tmp_path)
    store.open()
    assert store.save(NodeState("n0", "p", assignment=Assignment("n0", "p", 7, 1, 1_000)), {})
    path = store.path("n0")
    for damage in (
        path.read_bytes().replace(b'"generation":7', b'"generation":9'),
        b"",
        b"\0" * 99,
    ):
        caplog.clear()
        path.write_bytes(damage)
        assert store.restore(NodeState("n0", "p")) == (NodeState("n0", "p"), {})
        assert str(path) in caplog.text and "checksum" in caplog.text
    store.close()
