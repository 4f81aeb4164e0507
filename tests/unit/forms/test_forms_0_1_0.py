"""Records, decision logs and state files of 0.1.0 can be read (`recorded_forms` wrote them, and a
run of `shoal up` the state files)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import orjson

from autoscaler.decide import restore
from autoscaler.domain.cluster import Cluster
from executors.gateway.gateway_metrics import GatewayMetrics
from executors.gateway.route_table import RouteTable
from executors.node.node_state import NodeState
from executors.node.state_store import StateStore
from streams.decision_log.log_reader import Gap, read_spans, segments
from streams.ports.telemetry_wire import read_reported
from tests.unit.decide.decide_catalogue import pool, service
from topics.codec import decode
from topics.fleet import InstanceState
from topics.records import Assignment, LedgerEntry, Routes, Status

FORMS = Path(__file__).parents[2] / "data" / "forms-0.1.0"


def lines() -> list[tuple[str, bytes]]:
    found = map(orjson.loads, (FORMS / "topics.jsonl").read_bytes().splitlines())
    return [(name, orjson.dumps(value)) for name, value in found]


def test_every_record_is_read_with_the_values_that_were_written() -> None:
    for name, data in lines():
        _agrees(decode(name, data), orjson.loads(data), name)


def _agrees(value: Any, written: Any, path: str) -> None:
    """Fields that still exist have the written values. Sketches have a form of their own."""
    if not isinstance(written, dict):
        items = list(value) if isinstance(written, list) else value
        assert isinstance(written, list) or items == written, path
        for at, item in enumerate(written if isinstance(written, list) else ()):
            _agrees(items[at], item, f"{path}[{at}]")
        return
    for key, one in written.items():
        if isinstance(value, dict):
            _agrees(value[key], one, f"{path}.{key}")
        elif hasattr(value, key):
            _agrees(getattr(value, key), one, f"{path}.{key}")


def test_telemetry_takes_the_fast_path() -> None:
    batch, wrong = read_reported([data for name, data in lines() if name == "telemetry"])
    assert not wrong and len(batch.names) == 1


def test_a_new_leader_continues_with_the_fleet_and_what_was_learnt() -> None:
    records = [decode(name, data) for name, data in lines()]
    assignments = {one.node: one for one in records if isinstance(one, Assignment)}
    one = pool("one", nodes=4, per_node=1)
    state = restore(
        Cluster((one,), (service("chat"),)),
        assignments,
        {one.model: one for one in records if isinstance(one, Routes)},
        {one.node: one for one in records if isinstance(one, Status)},
        [],
        1_700_000_150_000,
        leader_token=2,
        ledger=[one for one in records if isinstance(one, LedgerEntry)],
    )
    assigned = {i.instance for a in assignments.values() for i in a.instances}
    assert {placed.instance for group in state.groups for placed in group.placed} == assigned
    assert assigned
    base = state.models["chat"].rollout.base
    assert base is not None and base.digest == service("chat").version


def test_a_decision_log_is_read_without_gaps() -> None:
    gaps: list[Gap] = []
    ticks = [tick for span in read_spans(segments(FORMS / "log"), gaps) for tick in span.ticks]
    assert not gaps and len(ticks) == 150
    assert {one.model for tick in ticks for one in tick.decisions} >= {"chat"}


def test_an_executor_finds_its_instances(tmp_path: Path) -> None:
    shutil.copytree(FORMS / "executor", tmp_path, dirs_exist_ok=True)
    store = StateStore(tmp_path)
    state, _ = store.restore(NodeState("us-east.h100.owned.0", "us-east/h100/owned"))
    assert state.assignment is not None
    assert state.assignment.node == "us-east.h100.owned.0"
    assert {(one.instance, one.state) for one in state.instances} == {
        ("chat-30-a0", InstanceState.READY),
        ("chat-69-a0", InstanceState.STOPPED),
        ("chat-70-a0", InstanceState.READY),
    }


async def test_a_gateway_finds_its_routes(tmp_path: Path) -> None:
    shutil.copytree(FORMS / "gateway", tmp_path, dirs_exist_ok=True)
    table = RouteTable(GatewayMetrics(), tmp_path, 0.0)
    table.load()
    assert set(table.routers) == {"chat", "code", "mini"}
