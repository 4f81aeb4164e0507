"""Simulation by rates, compared with single requests: attainment up to overload, requests in
flight, and baselines that scale on them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoscaler.domain.cluster import Cluster
from autoscaler.simulation.arrivals import Arrival, measured_lengths
from autoscaler.simulation.decider import DeciderInput, DeciderOutput
from autoscaler.simulation.fixed_fleet import FixedFleet
from autoscaler.simulation.policies.policy import policy_context
from autoscaler.simulation.policies.registry import POLICIES
from autoscaler.simulation.policy_score import Score, score
from autoscaler.simulation.rate_simulator import MAX_STEP_FEW_S, RateSimulator, simulate_rates
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.simulator import ORIGIN_MS, simulate
from loadtests.arrivals import Step, Swing, lognormal_lengths, poisson, swinging
from loadtests.decision_cases import acting
from streams.files.shoal_yaml import load_config
from streams.tools.backtest.backtest_demand import DEFAULT_CONFIG
from tests.unit.simulation.simulation_builders import ONE, cluster

BUNDLED = acting(load_config(DEFAULT_CONFIG).cluster)
KINDS = {
    "code:a2@us-east/l40s-4/on-demand": (1200.0, 200.0, 3.05),
    "chat:a2@us-east/h100-2/on-demand": (1000.0, 250.0, 6.85),
    "mini:a1@us-east/l40s/on-demand": (500.0, 200.0, 15.9),
}
"""By combo: mean input and output tokens, and requests/s at saturation."""
SPAN_S = 300.0
LOADS = (0.5, 0.7, 0.9, 1.0, 1.1)


def alone(model: str) -> Cluster:
    return replace(BUNDLED, services=(BUNDLED.service(model),))


def attained(where: Cluster, combo: str, came: list[Arrival], fluid: bool, seed: int) -> float:
    lengths = measured_lengths(came)
    scenario = Scenario(where, came, SPAN_S, 240.0, seed=seed)
    run = simulate_rates if fluid else simulate
    return score(
        run(scenario, FixedFleet({combo: 2}, where, lengths)), scenario, lengths
    ).slo_attainment


@pytest.mark.parametrize("combo", KINDS)
def test_a_fleet_attains_with_rates_what_it_attains_with_requests(combo: str) -> None:
    """Around saturation a few percent of load decide about the SLO. Chance decides about the rest:
    two draws of requests differ by up to ten points there.
    """
    inputs, outputs, saturation = KINDS[combo]
    model = combo.partition(":")[0]
    apart = []
    for load in LOADS:
        found = []
        for seed in (1, 2):
            random = np.random.default_rng(seed)
            draw = lognormal_lengths(inputs, outputs)
            came = poisson(model, [Step(0.0, 2.0 * load * saturation)], SPAN_S, draw, random)
            requests, rates = (
                attained(alone(model), combo, came, fluid, seed) for fluid in (False, True)
            )
            found.append(rates - requests)
        apart.append(float(np.mean(found)))
    assert np.abs(apart).max() <= 0.12
    assert abs(float(np.mean(apart))) <= 0.05


class InFlightRecorder(FixedFleet):
    """Records the requests in flight that the gateway reports once all instances serve."""

    seen: tuple[int, ...] = ()

    def decide(self, inputs: DeciderInput, now_ms: int) -> DeciderOutput:
        if ORIGIN_MS + 340_000 <= now_ms < ORIGIN_MS + 640_000 and now_ms % 10_000 == 0:
            (gateway,) = inputs.windows.gateways("mini", now_ms)
            self.seen += (gateway.in_flight,)
        return super().decide(inputs, now_ms)


@pytest.mark.parametrize(("outputs", "rate"), [(20.0, 40.0), (300.0, 6.0)])
def test_reported_requests_in_flight_follow_littles_law(outputs: float, rate: float) -> None:
    """Answers of half a second count as in flight, although a gateway reports every 10 s."""
    draw = lognormal_lengths(200.0, outputs)
    came = poisson("mini", [Step(0.0, rate)], 400.0, draw, np.random.default_rng(1))
    where = cluster(nodes=4)
    scenario = Scenario(where, came, 400.0, 240.0)
    recorder = InFlightRecorder({ONE: 3}, where, measured_lengths(came))
    simulate_rates(scenario, recorder, tick_s=10)
    seen = recorder.seen
    calls = simulate(scenario, FixedFleet({ONE: 3}, where, measured_lengths(came))).requests
    single = [
        sum(c.arrival_s <= at_s and (c.end_s is None or c.end_s > at_s) for c in calls)
        for at_s in range(340, 640, 10)
    ]
    assert np.mean(seen) == pytest.approx(np.mean(single), rel=0.15)
    assert np.std(seen) == pytest.approx(np.std(single), rel=0.6)


def baseline(policy: str, knob: float, came: list[Arrival], fluid: bool) -> Score:
    base = cluster(nodes=16)
    declared = replace(base, services=(replace(base.services[0], req_per_s=12.0),))
    scenario = Scenario(declared, came, came[-1].at_s, 240.0)
    rule = POLICIES[policy]
    trial = rule.build(policy_context(scenario, fluid), knob)
    if fluid:
        found = simulate_rates(trial.scenario, trial.decider, trial.plan, rule.tick_s)
    else:
        found = simulate(trial.scenario, trial.decider, trial.plan)
    return score(found, scenario, measured_lengths(came))


@pytest.mark.parametrize(
    ("policy", "knob"), [("hpa-utilization", 0.7), ("knative", 0.7), ("skyserve", 0.8)]
)
def test_a_baseline_scales_with_rates_as_it_does_with_requests(policy: str, knob: float) -> None:
    draw = lognormal_lengths(500.0, 100.0)
    swing = Swing(12.0, 4.0, 1200.0)
    came = swinging("mini", swing, 1200.0, draw, np.random.default_rng(1))
    one, other = (baseline(policy, knob, came, fluid) for fluid in (False, True))
    assert other.cost_usd == pytest.approx(one.cost_usd, rel=0.2)
    assert other.slo_attainment == pytest.approx(one.slo_attainment, abs=0.05)


def test_a_queue_of_rates_grows_a_fleet_only_beyond_its_capacity() -> None:
    """With requests, the queue is the difference between a gateway's count and statuses up to 2 s
    old, so it is never empty. With rates it can be empty.
    """
    draw = lognormal_lengths(500.0, 100.0)
    starts = []
    for rate in (12.0, 60.0):
        came = poisson("mini", [Step(0.0, rate)], 600.0, draw, np.random.default_rng(1))
        starts.append(baseline("hpa-queue", 3.0, came, fluid=True).starts)
    assert starts[0] == 1
    assert starts[1] > 3


def test_engines_count_the_requests_of_a_flow() -> None:
    """Finished requests and requests in flight are all requests that arrived."""
    requests = poisson(
        "mini", [Step(0.0, 6.0)], 300.0, lognormal_lengths(500.0, 100.0), np.random.default_rng(1)
    )
    scenario = Scenario(cluster(nodes=4), requests, 300.0, 240.0)
    fleet = FixedFleet({ONE: 2}, scenario.cluster, measured_lengths(scenario.arrivals))
    simulator = RateSimulator(scenario, fleet)
    for at_s in (360.0, 480.0):
        simulator.advance(at_s)
        seen = [one for status in simulator.statuses.values() for one in status.instances]
        accepted = sum(one.finished + one.in_flight for one in seen)
        arrived = sum(one.at_s < at_s - 240.0 for one in scenario.arrivals)
        assert accepted == pytest.approx(arrived, abs=6.0 * MAX_STEP_FEW_S)
        assert all(one.finished for one in seen)
