"""Records of undeclared names are dropped on arrival and counted by topic."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoscaler.domain.node_names import NodeNames, node_ids
from autoscaler.estimate.windows import TelemetryWindows
from streams.clock import Clock
from streams.controller.demand_sources import gateways_sink
from streams.files.shoal_yaml import load_config
from streams.loop.control_state import ControlState, DesiredRecords, control_record_handler
from streams.loop.declared_names import DeclaredNames
from streams.loop.election import Election
from streams.ports.merged_records import MERGED
from topics.records import (
    Assignment,
    Availability,
    Control,
    DesiredInstance,
    LedgerEntry,
    Price,
    Status,
    Telemetry,
)
from topics.telemetry_columns import batch_of
from topics.time_base import TimeBase

CLUSTER = load_config("streams/data/demo.yaml").cluster
NOW_MS = 1_800_000_000_000
POOL = CLUSTER.pools[0]
MODEL = CLUSTER.services[0].model


def test_every_node_of_a_pool_is_declared_and_no_other() -> None:
    """Node names are calculated, not stored in a list."""
    pools = (POOL, replace(POOL, name="other", max_nodes=12))
    names = NodeNames(pools)
    assert all(node in names for pool in pools for node in node_ids(pool))
    stem = node_ids(pools[1])[0].removesuffix("0")
    strangers = ["", "n1", "0", ".0", stem, stem + "12", stem + "01", stem + "-1", stem + "9" * 30]
    assert not any(node in names for node in [*strangers, stem + "٣", f"x{stem}0", stem[:-2] + "0"])


def test_records_of_undeclared_names_are_counted_and_not_kept() -> None:
    """Twenty thousand undeclared names use no memory."""
    latest = ControlState()
    known = DeclaredNames(lambda: CLUSTER, latest.desired.assignments)
    clock = Clock(TimeBase(1.0, NOW_MS, 0), lambda: 0, lambda: NOW_MS)
    take = control_record_handler(latest, Election("b"), clock, print, print, known)
    for at in range(3):
        take("status", Status(f"n{at}", POOL.id, "e", 1, NOW_MS), at, NOW_MS)
        take("ledger", LedgerEntry("groups", f"m{at}", 0, 1, "{}"), at, NOW_MS)
        take("supply.prices", Price(f"p{at}", 1.0, at), at, NOW_MS)
        take("supply.availability", Availability(f"p{at}", 1, at), at, NOW_MS)
    assert not latest.statuses and not latest.desired.ledger
    assert not latest.supply.usd_per_node_h and not latest.supply.nodes_obtainable
    assert dict(known.dropped) == {
        "status": 3, "ledger": 3, "supply.prices": 3, "supply.availability": 3
    }  # fmt: skip
    take("status", Status(node_ids(POOL)[0], POOL.id, "e", 1, NOW_MS), 9, NOW_MS)
    take("supply.prices", Price(POOL.id, 1.0, 1), 9, NOW_MS)
    assert list(latest.statuses) == [node_ids(POOL)[0]] and list(latest.supply.usd_per_node_h)


def test_a_node_with_assigned_instances_counts_although_its_pool_is_undeclared() -> None:
    """The controller must observe its instances until they end."""
    latest = ControlState(desired=DesiredRecords(claimed=1))
    known = DeclaredNames(lambda: CLUSTER, latest.desired.assignments)
    wish = DesiredInstance("i", MODEL, "aggregated", "g:1", (0,))
    latest.take(Assignment("old.0", "a/b/c", 1, 1, 0, (wish,)), 0)
    latest.take(Assignment("old.1", "a/b/c", 1, 1, 0), 0)
    assert known.has_node("old.0") and known.has_node("old.1") and not known.has_node("old.2")


def test_telemetry_of_undeclared_models_reaches_no_window() -> None:
    """The rest of the batch counts."""
    one = Telemetry(MODEL, f"{MERGED}-1", "b", 1, NOW_MS, 1000, 0, 7, *[0] * 9)
    windows, known = TelemetryWindows(), DeclaredNames(lambda: CLUSTER, {})
    news: list[int] = []
    take = gateways_sink(windows, {}, lambda: news.append(1), known)
    batch = batch_of([replace(one, model=f"m{at}") for at in range(5)] + [one])
    take(batch, np.full(6, NOW_MS))
    assert windows.counters.applied == 1 and known.dropped["telemetry"] == 5
    assert news == [1]
    assert windows.producer_count("m1") == 0


@pytest.mark.parametrize("scope", ["*", MODEL])
def test_many_pauses_of_unknown_models_do_not_block_an_operator(scope: str) -> None:
    """A pause may come before the declaration of its model, so a limited number of such pauses is
    kept.
    """
    known = DeclaredNames(lambda: CLUSTER, {})
    stranger = Control("later", "pause", True, "ann", "", NOW_MS)
    assert known.admits("controls", stranger, 100)
    assert not known.admits("controls", stranger, 1_000_000)
    assert known.admits("controls", replace(stranger, scope=scope), 1_000_000)
    assert known.dropped["controls"] == 1


def test_stored_answers_to_proposals_are_bounded_and_pauses_stay() -> None:
    """Each proposal gets an answer. Only the answer to the present proposal counts."""
    latest = ControlState()
    latest.take(Control(MODEL, "pause", True, "ann", "", NOW_MS), 0)
    for number in range(1, 6000):
        latest.take(Control(MODEL, "verdict", True, "ann", "", NOW_MS, proposal=number), number)
    assert len(latest.controls) <= 2001
    assert f"pause/{MODEL}" in latest.controls and "verdict/0.5999" in latest.controls
