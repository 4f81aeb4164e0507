"""Simulated cases: demand, figures that can be recomputed, and the search for fixed fleets."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from autoscaler.domain.cluster import Market
from autoscaler.simulation import fleet_search
from autoscaler.simulation.arrivals import measured_lengths
from autoscaler.simulation.fixed_fleet import FixedFleet
from autoscaler.simulation.fleet_options import instance_kinds
from autoscaler.simulation.fleet_search import FleetSearch, search_fleets
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.simulator import simulate
from autoscaler.simulation.supply_script import PriceChanged
from loadtests.decision_cases import Case, Prepared, prepare
from loadtests.decision_figures import Truth, smoothed_rates
from loadtests.decision_runs import Run, as_json, judge, run_with, write_timeline
from tests.unit.simulation.simulation_builders import OD, ONE, cluster, evenly, service

CONFIG = Path(__file__).with_name("mini.yaml")
STEP = Case("step", "steps", CONFIG, rates=(1.0, 6.0), before_s=60.0, duration_s=60.0, lead_s=120)


def fixed(case: Case, seed: int, counts: dict[str, int]) -> Run:
    prepared = prepare(case, seed)
    where = prepared.scenario.cluster
    return run_with(case, seed, FixedFleet(counts, where, prepared.truth.lengths))


L4 = {"mini:a1@eu-west/l4/on-demand": 3, "mini:a1@eu-west/l4/spot": 2}


def test_the_same_seed_gives_the_same_bytes_and_another_one_others() -> None:
    one, again = (as_json([fixed(STEP, 7, L4)]) for _ in range(2))
    assert one == again
    assert as_json([fixed(STEP, 8, L4)]) != one


def test_cost_and_attainment_can_be_recomputed_from_the_timeline(tmp_path: Path) -> None:
    """The timeline file alone is sufficient. It contains a price change and requests that missed
    their SLO.
    """
    where = cluster()
    arrivals = evenly(40, 1.0) + evenly(860, 1 / 20, first_s=40.0)
    scenario = Scenario(where, arrivals, 85.0, 120.0, (PriceChanged(150.0, OD, 7.7),))
    truth = Truth(smoothed_rates(arrivals, 120.0), measured_lengths(arrivals))
    prepared = Prepared(scenario, truth)
    found = simulate(scenario, FixedFleet({ONE: 1}, where, truth.lengths))
    figures = judge("x", 1, prepared, found).as_json()
    path = tmp_path / "timeline.jsonl"
    write_timeline(path, found)
    usd, asked, hits, late = 0.0, 0, 0, 0
    slo = service().slo
    for line in map(orjson.loads, path.read_bytes().splitlines()):
        if line["kind"] == "node":
            usd += line["usd_per_h"] * (line["to_s"] - line["from_s"]) / 3600.0
            continue
        asked += 1
        if line["outcome"] != "served":
            continue
        ttft_ms = 1000.0 * (line["first_token_s"] - line["arrival_s"])
        gaps = line["output_tokens"] - 1
        tpot_ms = 1000.0 * (line["end_s"] - line["first_token_s"]) / gaps if gaps else 0.0
        late += ttft_ms > slo.ttft_ms
        hits += ttft_ms <= slo.ttft_ms and tpot_ms <= slo.tpot_ms
    model = figures["models"]["mini"]
    assert (figures["cost_usd"], model["slo_attainment"]) == (usd, hits / asked)
    assert model["requests"] == asked == 900
    assert 0 < hits < asked  # Some requests meet the SLO and some miss it.
    assert late > 0


def test_a_step_changes_the_rate_at_its_time() -> None:
    prepared = prepare(STEP, 3)
    assert prepared.step_s == 180.0
    arrivals = prepared.scenario.arrivals
    before = sum(arrival.at_s < 60.0 for arrival in arrivals)
    assert 35 < before < 90
    assert 290 < len(arrivals) - before < 430
    rate = prepared.truth.rates["mini"]
    assert (rate(60.0), rate(179.0), rate(180.0)) == (0.0, 1.0, 6.0)


def test_a_steady_scenario_starts_with_a_fleet_for_more_than_its_rate() -> None:
    case = Case("s", "steady", CONFIG, rates=(9.0,), duration_s=60.0, load=0.75)
    held = prepare(case, 1).scenario.cluster.services[0]
    assert held.req_per_s == pytest.approx(12.0)
    assert held.min_instances >= 2


def test_gamma_arrivals_come_in_bursts() -> None:
    """The variance of counts in long spans is CV^2 times that of Poisson arrivals."""
    case = Case("g", "gamma", CONFIG, rates=(5.0,), cv=3.5, duration_s=20_000.0)
    counts = [0] * 200
    for arrival in prepare(case, 5).scenario.arrivals:
        counts[int(arrival.at_s // 100.0)] += 1
    mean = sum(counts) / len(counts)
    spread = sum((count - mean) ** 2 for count in counts) / len(counts) / mean
    assert mean == pytest.approx(500.0, rel=0.1)
    assert 8.0 < spread < 17.0  # 12.25 in long spans


def test_a_swing_goes_from_lowest_to_highest_and_back() -> None:
    case = Case("d", "swing", CONFIG, rates=(5.0,), swing=4.0, duration_s=8000.0, lead_s=100.0)
    prepared = prepare(case, 1)
    rate = prepared.truth.rates["mini"]
    assert (rate(50.0), rate(100.0), rate(4100.0)) == pytest.approx((0.0, 2.0, 8.0))
    counts = [0] * 8
    for arrival in prepared.scenario.arrivals:
        counts[int(arrival.at_s // 1000.0)] += 1
    assert sum(counts) == pytest.approx(40_000, rel=0.03)
    assert counts[3] == pytest.approx(7700, rel=0.05)  # mean rate of that eighth of the period
    assert counts[7] == pytest.approx(2300, rel=0.05)


def test_a_run_with_rates_has_all_figures_except_the_peak() -> None:
    """Both kinds of run have equal cost, capacity and moves. Figures that rates cannot give are
    null.
    """
    enough = {"mini:a1@eu-west/l4/on-demand": 12}
    steady = replace(STEP, kind="steady", rates=(5.0,))
    one, flow = (
        fixed(replace(steady, fluid=fluid), 7, enough).as_json() for fluid in (False, True)
    )
    assert one.keys() == flow.keys()
    mine, other = one["models"]["mini"], flow["models"]["mini"]
    assert other.pop("of_p99_need") is None
    assert mine.pop("of_p99_need") > 0.0
    for key in ("requests", "served", "slo_attainment", "over_provisioning", "reversals"):
        assert other[key] == pytest.approx(mine[key], rel=0.05)
    assert flow["cost_usd"] == pytest.approx(one["cost_usd"])


def test_fleet_search_with_rates_finds_the_same_fleet_as_with_requests() -> None:
    prepared = prepared_at(20.0)
    found = [
        search_fleets(prepared.scenario, prepared.truth.lengths, "mini", (0.97,), fluid).cheapest[
            0.97
        ]
        for fluid in (False, True)
    ]
    assert all(found)
    few, other = (sum(n for _, n in fleet.counts) for fleet in found if fleet)
    assert abs(few - other) <= 1


def prepared_at(req_per_s: float) -> Prepared:
    where = cluster(service(spot_share=0.34), nodes=4)
    arrivals = evenly(int(60 * req_per_s), 1 / req_per_s)
    truth = Truth(smoothed_rates(arrivals, 120.0), measured_lengths(arrivals))
    return Prepared(Scenario(where, arrivals, 60.0, 120.0), truth)


def whole_search(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> FleetSearch:
    """A search that simulates every fleet by requests, whatever rates say."""
    monkeypatch.setattr(fleet_search, "SCREEN_MARGIN", 1.0)
    return FleetSearch(prepared.scenario, prepared.truth.lengths, "mini", min_target=0.97)


def test_fleet_search_finds_the_cheapest_fleet_with_its_spot_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reference is every count of the only instance kind."""
    prepared = prepared_at(20.0)
    found = search_fleets(prepared.scenario, prepared.truth.lengths, "mini", (0.97,)).cheapest[0.97]
    search = whole_search(prepared, monkeypatch)
    attain = {n: search._simulate((n,)) for n in range(1, 7)}
    fewest = min(n for n, fleet in attain.items() if fleet and fleet.attainment >= 0.97)
    assert found is not None
    assert sum(count for _, count in found.counts) == fewest > 1
    on_spot = sum(count for name, count in found.counts if "/spot" in name)
    assert on_spot == int(0.34 * fewest + 1e-9)
    assert found.usd_per_h == pytest.approx(2.0 * (fewest - on_spot) + 0.8 * on_spot)


def test_fleet_search_over_two_kinds_is_as_cheap_as_trying_every_mix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepared = prepare(replace(STEP, rates=(6.0, 6.0)), 2)
    few = tuple(replace(pool, max_nodes=3) for pool in prepared.scenario.cluster.pools)
    where = replace(prepared.scenario.cluster, pools=few)
    prepared = replace(prepared, scenario=replace(prepared.scenario, cluster=where))
    found = search_fleets(prepared.scenario, prepared.truth.lengths, "mini", (0.97,)).cheapest[0.97]
    search = whole_search(prepared, monkeypatch)
    every = [search._simulate(c) for c in itertools.product(range(5), repeat=len(search.kinds))]
    enough = [fleet for fleet in every if fleet is not None and fleet.attainment >= 0.97]
    assert found is not None
    assert found.usd_per_h == pytest.approx(min(fleet.usd_per_h for fleet in enough))


def test_owned_nodes_are_filled_first_and_are_finite() -> None:
    prepared = prepared_at(1.0)
    pools = prepared.scenario.cluster.pools
    owned = replace(pools[0], market=Market.OWNED, price_usd_per_h=0.0, max_nodes=1)
    where = replace(prepared.scenario.cluster, pools=(*pools, owned))
    prepared = replace(prepared, scenario=replace(prepared.scenario, cluster=where))
    (kind,) = instance_kinds(where, where.services[0], prepared.truth.lengths["mini"])
    assert kind.max_count() == 9
    found = search_fleets(prepared.scenario, prepared.truth.lengths, "mini", (0.97,)).cheapest[0.97]
    assert found is not None
    assert found.counts == ((f"mini:a1@{owned.id}", 1),)
    assert found.usd_per_h == 0.0


def test_declared_minimums_hold_for_fixed_fleets() -> None:
    prepared = prepared_at(1.0)
    floor = replace(prepared.scenario.cluster, services=(service(min_instances=3),))
    held = replace(prepared, scenario=replace(prepared.scenario, cluster=floor))
    for where, least in ((prepared, 1), (held, 3)):
        found = search_fleets(where.scenario, where.truth.lengths, "mini", (0.97,)).cheapest[0.97]
        assert found is not None
        assert sum(count for _, count in found.counts) == least
