"""Hindsight on traces: the bound, the plan, its placement on nodes, and the spans of a trace."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autoscaler.domain.cluster import Market, Pool
from autoscaler.performance import catalog
from autoscaler.simulation.arrivals import Arrival
from autoscaler.simulation.hindsight.demand_spans import Market as Prices
from autoscaler.simulation.hindsight.demand_spans import Steps, merged, minutes_of
from autoscaler.simulation.hindsight.hindsight_cost import Hindsight, hindsight, mean_of
from autoscaler.simulation.hindsight.node_schedule import Stay, bill_usd
from autoscaler.simulation.policies.policy import policy_context
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.supply_script import NodesLimited, PriceChanged, ScriptEvent
from streams.files.shoal_yaml import load_config

CLUSTER = load_config(Path(__file__).parent / "mini.yaml").cluster
POOL = Pool("eu", "a", catalog.gpu("L4"), 2, 2, Market.ON_DEMAND, 3.6)
FOREVER = -math.inf


def scenario(rates: Sequence[float], script: tuple[ScriptEvent, ...] = ()) -> Scenario:
    """Minutes with these requests/s each, evenly spaced."""
    times = [60.0 * k + i / rate for k, rate in enumerate(rates) for i in range(int(60 * rate))]
    arrivals = tuple(Arrival(at_s, "mini", 800, 150) for at_s in times)
    return Scenario(CLUSTER, arrivals, 60.0 * len(rates), 240.0, script)


def in_hindsight(rates: Sequence[float], script: tuple[ScriptEvent, ...] = ()) -> Hindsight:
    return hindsight(policy_context(scenario(rates, script)))


def prices(steps: Steps | None = None, nodes: Steps | None = None) -> Prices:
    usd = steps or Steps((FOREVER,), (3.6,))
    return Prices({POOL.id: usd}, {POOL.id: nodes or Steps((FOREVER,), (2.0,))})


def stay(launch_s: float, stop_s: float, gpus: int = 1) -> Stay:
    return Stay(POOL.id, gpus, launch_s, stop_s)


def test_the_plan_of_a_swing_follows_it_and_pays_for_starts() -> None:
    """Constant demand costs the bound and the first start; a swing costs more than its bound."""
    swing = in_hindsight([2.0, 60.0, 2.0, 60.0, 2.0])
    assert swing.plan_usd is not None and swing.served == 1.0
    assert 0.0 < swing.bound_usd < swing.plan_bound_usd <= swing.plan_usd
    assert swing.gap is not None and swing.gap <= 0.01
    peak = in_hindsight([60.0] * 5)
    assert peak.plan_usd is not None and swing.plan_usd < peak.plan_usd


def test_the_penalty_of_starts_is_no_part_of_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """No policy pays k_start, so the bound and the plan must not depend on it."""
    dear = replace(CLUSTER, policy=replace(CLUSTER.policy, k_start=5.0))
    usual = scenario([5.0, 20.0])
    got = [hindsight(policy_context(replace(usual, cluster=one))) for one in (CLUSTER, dear)]
    assert got[0] == got[1]


def test_prices_and_limits_of_the_moment_count() -> None:
    rates = [20.0] * 4
    usual = in_hindsight(rates)
    pools = [pool.id for pool in CLUSTER.pools]
    higher = tuple(PriceChanged(240.0 + 120.0, one, 10.0) for one in pools)
    assert in_hindsight(rates, higher).bound_usd > 1.5 * usual.bound_usd
    none = tuple(NodesLimited(240.0 + 120.0, one, 0) for one in pools)
    short = in_hindsight(rates, none)
    assert short.served == pytest.approx(0.5)
    assert short.bound_usd <= usual.bound_usd


def test_a_trace_without_requests_costs_nothing() -> None:
    empty = Scenario(replace(CLUSTER, services=tuple(
        replace(s, min_instances=0) for s in CLUSTER.services)), (), 120.0)  # fmt: skip
    got = hindsight(policy_context(empty))
    assert (got.bound_usd, got.plan_usd, got.served) == (0.0, 0.0, 1.0)


def test_long_stays_share_a_node_and_short_ones_release_theirs() -> None:
    """Two GPUs of each node: the two long stays fill one, the short ones the other."""
    stays = [stay(0.0, 100.0), stay(0.0, 1000.0), stay(0.0, 100.0), stay(0.0, 1000.0)]
    assert bill_usd(stays, [POOL], prices()) == pytest.approx(1.0 + 0.1)


def test_a_node_is_free_between_stays_and_billed_at_the_price_of_the_moment() -> None:
    stays = [stay(0.0, 100.0), stay(500.0, 1000.0)]
    changed = Steps((FOREVER, 600.0), (3.6, 7.2))
    assert bill_usd(stays, [POOL], prices(changed)) == pytest.approx(0.1 + 0.1 + 0.8)


def test_stays_that_do_not_fit_the_nodes_have_no_bill() -> None:
    many = [stay(0.0, 10.0, 2)] * 3
    assert bill_usd(many, [POOL], prices()) is None
    limited = prices(nodes=Steps((FOREVER, 5.0), (2.0, 1.0)))
    assert bill_usd(many[:2], [POOL], limited) is None
    assert bill_usd(many[:1], [POOL], limited) is not None


def test_minutes_have_mean_rates_and_the_last_one_may_be_shorter() -> None:
    one = replace(scenario([2.0, 4.0]), duration_s=90.0, weights={"mini": 3.0})
    assert minutes_of(one, ("mini",)).tolist() == [[6.0], [24.0]]


def test_merged_spans_cover_all_minutes_and_join_similar_ones() -> None:
    rates = np.array([[1.0], [1.0], [9.0], [9.0], [1.0], [1.1]])
    assert merged(rates, np.ones(1), 3) == [(0, 2), (2, 4), (4, 6)]
    many = np.random.default_rng(1).uniform(0.0, 5.0, (1000, 2))
    edges = merged(many, np.ones(2), 60)
    assert len(edges) == 60 and edges[0][0] == 0 and edges[-1][1] == 1000
    assert all(a[1] == b[0] for a, b in itertools.pairwise(edges))


def test_without_a_plan_for_one_trace_there_is_no_mean_plan() -> None:
    known, unknown = Hindsight(1.0, 3.0, 2.0, 1.0, 0.9), Hindsight(2.0, None, 2.0, 0.0, 0.9)
    assert mean_of([known, known]).plan_usd == 3.0
    assert mean_of([known, unknown]).plan_usd is None
    assert mean_of([known, unknown]).bound_usd == 1.5
