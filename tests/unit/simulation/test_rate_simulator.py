"""Simulation by rates gives the fleet, cost and attainment of the simulation by requests."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from autoscaler.domain.workload import Lengths, Phase, Slo
from autoscaler.serving.engine_setup import engine_setup
from autoscaler.simulation.arrival_flow import ArrivalFlow, Batch
from autoscaler.simulation.arrivals import Arrival, measured_lengths
from autoscaler.simulation.controller_under_test import ControllerUnderTest
from autoscaler.simulation.decider import DeciderInput, DeciderOutput
from autoscaler.simulation.fixed_fleet import FixedFleet
from autoscaler.simulation.instance_speed import InstanceSet, instance_speed
from autoscaler.simulation.policy_score import Score, score
from autoscaler.simulation.rate_flow import Flow
from autoscaler.simulation.rate_simulator import (
    MAX_STEP_FEW_S,
    MAX_STEP_S,
    RateSimulator,
    simulate_rates,
)
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.simulator import ORIGIN_MS, simulate
from autoscaler.simulation.supply_script import NodeLost, NodeReturned, PriceChanged
from loadtests.arrivals import Step, lognormal_lengths, poisson
from tests.unit.simulation.simulation_builders import OD, ONE, cluster
from topics.fleet import InstanceState

MODEL = "mini"
DRAW = lognormal_lengths(500.0, 100.0)
LENGTHS = Lengths.expected(500.0, 100.0)


def arrivals(rate: float, span_s: float, seed: int = 1) -> list[Arrival]:
    return poisson(MODEL, [Step(0.0, rate)], span_s, DRAW, np.random.default_rng(seed))


def scored(scenario: Scenario, fluid: bool, fleet: int) -> Score:
    lengths = measured_lengths(scenario.arrivals)
    decider = (
        FixedFleet({ONE: fleet}, scenario.cluster, lengths) if fleet else ControllerUnderTest()
    )
    run = simulate_rates if fluid else simulate
    return score(run(scenario, decider), scenario, lengths)


def flow_of(max_waiting: int = 10_000) -> Flow:
    return Flow(Slo(2000.0, 100.0), 30.0, 600.0, max_waiting, np.random.default_rng(1))


def instance_set(count: int = 2) -> InstanceSet:
    setup = engine_setup("openai/gpt-oss-20b", "L40S", 1, "aggregated", 8192)
    each = instance_speed((setup, Phase.AGGREGATED), None, LENGTHS, 1.0)
    return InstanceSet(1.0, count, each, 0, np.random.default_rng(1))


@pytest.mark.parametrize("load", [0.6, 1.3])
def test_a_fixed_fleet_has_the_cost_and_attainment_of_a_run_by_requests(load: float) -> None:
    rate = load * instance_set().req_per_s
    scenario = Scenario(cluster(nodes=4), arrivals(rate, 400.0), 400.0, 240.0)
    one, other = scored(scenario, False, 2), scored(scenario, True, 2)
    assert other.cost_usd == pytest.approx(one.cost_usd, rel=0.01)
    assert other.requests == one.requests
    assert other.slo_attainment == pytest.approx(one.slo_attainment, abs=0.05)


def test_the_controller_scales_a_flow_as_it_scales_requests() -> None:
    scenario = Scenario(cluster(nodes=8), arrivals(4.0, 900.0), 900.0, 240.0)
    one, other = scored(scenario, False, 0), scored(scenario, True, 0)
    assert other.cost_usd == pytest.approx(one.cost_usd, rel=0.1)
    assert other.slo_attainment == pytest.approx(one.slo_attainment, abs=0.03)


def test_a_falling_flow_is_scaled_in_like_requests() -> None:
    steps = [Step(0.0, 24.0), Step(300.0, 1.0)]
    falling = poisson(MODEL, steps, 1500.0, DRAW, np.random.default_rng(1))
    declared = cluster(nodes=8)
    short = replace(declared.services[0], scale_in_after_s=120.0)
    scenario = Scenario(replace(declared, services=(short,)), falling, 1500.0, 240.0)
    runs = [
        simulate(scenario, ControllerUnderTest()),
        simulate_rates(scenario, ControllerUnderTest()),
    ]
    billed = [[sum(n.from_s <= at < n.to_s for n in one.nodes) for at in (500, 1700)]
              for one in runs]  # fmt: skip
    assert billed[1][1] < billed[1][0]
    assert billed[1][1] == billed[0][1]


class TickRecorder(FixedFleet):
    """Records the times of its ticks in seconds."""

    asked: tuple[int, ...] = ()

    def decide(self, inputs: DeciderInput, now_ms: int) -> DeciderOutput:
        self.asked += ((now_ms - ORIGIN_MS) // 1000,)
        return super().decide(inputs, now_ms)


def test_ticks_are_rare_while_nothing_changes_and_follow_every_change() -> None:
    steps = [Step(0.0, 4.0), Step(1235.0, 40.0)]
    draw = np.random.default_rng(1)
    came = poisson(MODEL, steps, 1400.0, DRAW, draw)
    script = (PriceChanged(777.5, OD, 3.0),)
    scenario = Scenario(cluster(nodes=4), came, 1400.0, 0.0, script)
    decider = TickRecorder({ONE: 3}, scenario.cluster, measured_lengths(came))
    simulate_rates(scenario, decider)
    settled = [at for at in decider.asked if 600 <= at < 1230]
    assert max(b - a for a, b in pairwise(settled)) == MAX_STEP_FEW_S
    assert len(settled) < 630 / 20
    assert 778 in decider.asked
    # The rate is ten times as high. A tick follows the span in which the rise begins.
    assert {1230, 1240, 1250} <= set(decider.asked)


@pytest.mark.parametrize(("weight", "apart_s"), [(10.0, MAX_STEP_FEW_S), (30.0, MAX_STEP_S)])
def test_ticks_are_more_frequent_for_few_requests_than_for_many(
    weight: float, apart_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are 4 arrivals per second, and each stands for `weight` requests."""
    came = arrivals(4.0, 900.0)
    scenario = Scenario(cluster(nodes=4), came, 900.0, 240.0, weights={MODEL: weight})
    decider = TickRecorder({ONE: 3}, scenario.cluster, measured_lengths(came))
    simulator = RateSimulator(scenario, decider)
    monkeypatch.setattr(Flow, "is_steady", lambda self, requests, span_s: True)
    simulator.advance(1000.0)
    settled = [at for at in decider.asked if at >= 600]
    assert max(b - a for a, b in pairwise(settled)) == apart_s


@pytest.mark.parametrize(
    ("state", "calls"), [(InstanceState.DRAINING, False), (InstanceState.STOPPED, True)]
)
def test_a_tick_follows_the_end_of_an_instance_but_not_its_drain(
    state: InstanceState, calls: bool
) -> None:
    scenario = Scenario(cluster(nodes=4), arrivals(4.0, 600.0), 600.0, 240.0)
    decider = TickRecorder({ONE: 3}, scenario.cluster, measured_lengths(scenario.arrivals))
    simulator = RateSimulator(scenario, decider)
    simulator.advance(500.5)
    while decider.asked[-1] > simulator.events.now_ms / 1000.0 - 2.0:
        simulator.advance(simulator.events.now_ms / 1000.0 + 1.0)
    status = next(one for one in simulator.statuses.values() if one.instances)
    (instance,) = status.instances
    simulator.report_status(replace(status, instances=(replace(instance, state=state),)))
    now_s = math.floor(simulator.events.now_ms / 1000.0)
    simulator.advance(now_s + 2.0)
    assert (now_s + 1 in decider.asked) is calls


def test_groups_of_a_kind_form_one_instance_set() -> None:
    """Two instances serve a flow equally in one group or in two."""
    scenario = Scenario(cluster(nodes=4), arrivals(6.0, 300.0), 300.0, 240.0)
    lengths = measured_lengths(scenario.arrivals)
    simulator = RateSimulator(scenario, FixedFleet({ONE: 3}, scenario.cluster, lengths))
    simulator.advance(400.0)
    (ways,) = [made for _, made in simulator.gateway._set_cache.values()]
    assert [one.req_per_s for one in ways] == pytest.approx([instance_set(3).req_per_s], rel=0.05)


def test_nodes_report_their_status_at_every_tick() -> None:
    """Nodes without instances report too. Other nodes report their current load."""
    lengths = measured_lengths(arrivals(6.0, 10.0))
    busy = []
    for rate in (200.0, 1.0):
        scenario = Scenario(cluster(nodes=4), arrivals(rate, 300.0), 300.0, 240.0)
        simulator = RateSimulator(scenario, FixedFleet({ONE: 2}, scenario.cluster, lengths))
        simulator.advance(480.0)
        statuses = simulator.statuses.values()
        assert {replace(status) for status in statuses} == {
            *statuses
        }  # Every field is still checked.
        assert {bool(status.instances) for status in statuses} == {True, False}
        assert all(status.at_ms >= ORIGIN_MS + 1000 * (480 - MAX_STEP_S) for status in statuses)
        busy.append(sum(one.in_flight for status in statuses for one in status.instances))
    assert busy[0] > busy[1]


def test_a_lost_node_without_instances_stops_reporting() -> None:
    base = cluster(nodes=4)
    scenario = Scenario(base, arrivals(6.0, 300.0), 300.0, 240.0)
    simulator = RateSimulator(
        scenario, FixedFleet({ONE: 2}, base, measured_lengths(scenario.arrivals))
    )
    simulator.advance(300.0)
    idle = next(name for name, status in simulator.statuses.items() if not status.instances)
    simulator._apply_event(NodeLost(300.0, idle))
    simulator.advance(480.0)
    assert simulator.statuses[idle].at_ms <= ORIGIN_MS + 300_000
    simulator._apply_event(NodeReturned(480.0, idle))
    simulator.advance(540.0)
    assert simulator.statuses[idle].at_ms > ORIGIN_MS + 480_000


def test_a_flow_gives_the_same_timeline_twice() -> None:
    scenario = Scenario(cluster(nodes=8), arrivals(3.0, 600.0), 600.0, 240.0)
    runs = [simulate_rates(scenario, ControllerUnderTest()) for _ in range(2)]
    assert runs[0].flows == runs[1].flows
    assert runs[0].nodes == runs[1].nodes


def test_seeds_draw_different_counts_if_an_arrival_stands_for_many() -> None:
    """Equal seeds draw equal counts. With one request per arrival no count is drawn."""

    def counts(weight: float, seed: int) -> list[int]:
        few = arrivals(0.2, 60.0)
        scenario = Scenario(cluster(nodes=4), few, 60.0, 240.0, weights={MODEL: weight}, seed=seed)
        decider = FixedFleet({ONE: 2}, scenario.cluster, measured_lengths(few))
        return [row.requests for row in simulate_rates(scenario, decider).flows]

    assert counts(10.0, 1) == counts(10.0, 1) != counts(10.0, 2)
    assert counts(1.0, 1) == counts(1.0, 2)


def test_an_arrival_can_stand_for_many_requests() -> None:
    many = arrivals(2.0, 1000.0)
    plain = ArrivalFlow(many, 8192, 1.0, np.random.default_rng(1))
    heavy = ArrivalFlow(many, 8192, 50.0, np.random.default_rng(1))
    assert plain.take(0.0, 1000.0).requests == len(many)
    found = heavy.take(0.0, 1000.0)
    assert found.requests == pytest.approx(50 * len(many), rel=0.02)
    mean = sum(a.input_tokens for a in many) / len(many)
    assert found.input_tokens / found.requests == pytest.approx(mean, rel=0.03)
    assert found.inputs.sum() == found.shapes.sum() == found.requests


def turned(rate: float, span_s: float) -> list[Arrival]:
    """Requests with long prompts and short answers in the first half, and the reverse in the
    second.
    """
    half_s, random = 0.5 * span_s, np.random.default_rng(1)
    first, then = lognormal_lengths(6000.0, 30.0), lognormal_lengths(300.0, 400.0)
    long = poisson(MODEL, [Step(0.0, rate)], half_s, first, random)
    return long + poisson(MODEL, [Step(half_s, rate)], span_s, then, random)


def test_engines_are_evaluated_at_the_current_lengths() -> None:
    found = ArrivalFlow(turned(4.0, 1200.0), 32_768, 1.0, np.random.default_rng(1))
    before, after = found.lengths(30.0), found.lengths(1150.0)
    assert before is not None
    assert after is not None
    assert before.input_tokens == pytest.approx(6000.0, rel=0.1)
    assert after.input_tokens == pytest.approx(300.0, rel=0.1)
    assert found.lengths(570.0) is before
    steady = ArrivalFlow(arrivals(4.0, 3600.0), 8192, 1.0, np.random.default_rng(1))
    assert all(steady.lengths(float(at)) is steady.lengths(0.0) for at in range(0, 3600, 60))


def test_two_kinds_of_requests_at_once_load_a_fleet_as_they_do_one_by_one() -> None:
    """One kind has long prompts and short answers, the other the reverse. Long answers use little
    KV cache.
    """
    random, kinds = np.random.default_rng(1), [(4000, 10), (100, 900)]
    mixed = [Arrival(a.at_s, MODEL, *kinds[int(random.integers(2))]) for a in arrivals(8.0, 400.0)]
    found = ArrivalFlow(mixed, 8192, 1.0, random).lengths(0.0)
    assert found == replace(measured_lengths(mixed)[MODEL], together=-1.0)
    scenario = Scenario(cluster(nodes=4), mixed, 400.0, 240.0)
    one, other = scored(scenario, False, 2), scored(scenario, True, 2)
    assert other.slo_attainment == pytest.approx(one.slo_attainment, abs=0.12)


def test_requests_that_no_engine_accepts_are_counted_separately() -> None:
    odd = [Arrival(0.5, MODEL, 9000, 10), Arrival(0.6, MODEL, 10, 10)]
    found = ArrivalFlow(odd, 8192, 1.0, np.random.default_rng(1)).take(0.0, 1.0)
    assert (found.requests, found.too_long, found.servable) == (2, 1, 1)
    assert found.output_tokens == 10


def test_requests_beyond_the_capacity_wait_and_miss() -> None:
    ways, flow = [instance_set()], flow_of()
    rate = 2.0 * ways[0].req_per_s
    attained = served = 0.0
    for at in range(0, 200, 10):
        batch = Batch(round(10 * rate)) if at < 100 else Batch()
        for cohort in flow.advance(batch, float(at), at + 10.0, ways):
            attained, served = attained + cohort.attained, served + cohort.served
    assert served / (100 * rate) > 0.9
    assert attained / served < 0.3


@pytest.mark.parametrize(("from_s", "to_s", "alike"), [
    (300.0, 590.0, True), (500.0, 700.0, False), (700.0, 710.0, False), (900.0, 1000.0, True),
])  # fmt: skip
def test_a_change_of_lengths_is_not_quiet(from_s: float, to_s: float, alike: bool) -> None:
    """Neither are the two minutes after it, because the controller must observe the change."""
    came = [Arrival(float(at), MODEL, 100 if at < 600 else 400, 50) for at in range(1200)]
    assert (
        ArrivalFlow(came, 8192, 1.0, np.random.default_rng(1)).has_same_lengths(from_s, to_s)
        == alike
    )


def test_random_variation_counts_once() -> None:
    """Latencies at a load already include random variation. So counts that scatter around a rate
    are treated as that rate.
    """
    flow, random = flow_of(), np.random.default_rng(1)
    seen = []
    for at in range(0, 3600, 10):
        flow.advance(Batch(int(random.poisson(50.0))), float(at), at + 10.0, [instance_set()])
        seen.append(flow.req_per_s)
    settled = np.array(seen[30:])
    assert settled.mean() == pytest.approx(5.0, rel=0.02)
    assert settled.std() < 0.05 * 5.0


def test_misses_are_clustered() -> None:
    """In spans of five minutes, the mean number of misses equals that of the sample. The number
    varies more than that of independent misses, as in a simulation of single requests."""
    one = instance_set()
    flow, count = flow_of(), round(8.0 * one.req_per_s)
    missed = [0.0]
    for at in range(0, 36_000, 10):
        missed[-1] += sum(
            cohort.served - cohort.attained
            for cohort in flow.advance(Batch(count), float(at), at + 10.0, [one])
        )
        if at % 300 == 290:
            missed.append(0.0)
    windows = np.array(missed[1:-1])
    upto = one.at(count / 10.0).stats(flow.slo, 0.0)[0]
    expected = 30 * count * (1.0 - upto[-1] / (len(upto) - 1))
    assert windows.mean() == pytest.approx(expected, rel=0.15)
    assert windows.var() > 2.0 * windows.mean()


HALVES = np.minimum(np.arange(1001), 500)
"""The sample of 1,000 requests, of which the second half misses, as `Looks`."""


def test_an_instance_walks_along_the_sample() -> None:
    """It passes through the whole sample and starts again, until a new position is drawn."""
    one = instance_set(1)
    attained = [one.attained(HALVES, 10.0, 0.0) for _ in range(200)]
    assert sum(attained) == pytest.approx(1000.0)
    assert (
        sum(a != b for a, b in pairwise(attained)) <= 8
    )  # Two edges per round, each within one step of ten


def test_an_instance_jumps_in_the_sample_about_once_a_minute() -> None:
    """A sixth of 1,200 spans of 10 s begin at a new position. Half of these are in the other half
    of the sample.
    """
    one = instance_set(1)
    attained = [one.attained(HALVES, 1.0, 10.0) for _ in range(1200)]
    assert 70 < sum(a != b for a, b in pairwise(attained)) < 130
    assert np.mean(attained) == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("requests", [0.4, 1.0, 2.0, 7.5])
def test_a_few_requests_have_the_attainment_of_many(requests: float) -> None:
    """Cases: fewer requests than instances, fractions, and as many requests per instance as the
    sample has.
    """
    one = instance_set(3)
    assert np.mean([one.attained(HALVES, requests, 60.0) for _ in range(4000)]) == pytest.approx(
        0.5 * requests, rel=0.06
    )
    assert one.attained(HALVES, 3000.0, 60.0) == pytest.approx(1500.0)


@pytest.mark.parametrize("before", [0, 50])
def test_a_step_of_the_rate_is_followed_within_a_minute(before: int) -> None:
    flow = flow_of()
    for at in range(0, 1260, 10):
        flow.advance(Batch(before if at < 1200 else 100), float(at), at + 10.0, [instance_set()])
    assert flow.req_per_s == pytest.approx(10.0, rel=0.03)


def test_without_instances_requests_are_refused_after_the_hold() -> None:
    flow = flow_of()
    assert flow.advance(Batch(7), 0.0, 10.0, []) == []
    ended = [one for at in range(10, 60, 10) for one in flow.advance(Batch(), at, at + 10.0, [])]
    assert [(one.refused, one.served) for one in ended] == [(7, 0)]
    assert flow.unsent == flow.in_instances(60.0) == 0


def test_waiting_requests_are_limited_as_in_a_gateway() -> None:
    flow = flow_of(5)
    ended = flow.advance(Batch(8), 0.0, 10.0, [])
    assert flow.unsent == 5
    assert sum(one.refused for one in [*ended, *flow.cohorts]) == 3


def test_a_scenario_refuses_a_weight_below_one() -> None:
    scenario = Scenario(cluster(nodes=1), arrivals(1.0, 10.0), 10.0)
    with pytest.raises(ValueError, match="scenario: weights: mini"):
        replace(scenario, weights={MODEL: 0.5})
