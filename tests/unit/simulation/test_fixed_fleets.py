"""Fixed fleets of a backtest are sized for the trace, not for the declared rates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autoscaler.simulation.arrivals import Arrival
from autoscaler.simulation.policies.policy import policy_context
from autoscaler.simulation.policies.registry import POLICIES
from autoscaler.simulation.scenario import Scenario
from streams.files.shoal_yaml import load_config

CLUSTER = load_config(Path(__file__).parent / "mini.yaml").cluster


def fleet(declared_req_per_s: float, arrivals: tuple[Arrival, ...]) -> tuple[tuple[str, int], ...]:
    services = tuple(replace(s, req_per_s=declared_req_per_s) for s in CLUSTER.services)
    scenario = Scenario(replace(CLUSTER, services=services), arrivals, 60.0, 240.0)
    rule = POLICIES["fixed-peak"]
    key = rule.build(policy_context(scenario), rule.default).key
    assert key is not None
    return key


@pytest.mark.parametrize("req_per_s", [0.0, 2.0])
def test_a_declared_rate_does_not_change_the_fleet_for_the_peak(req_per_s: float) -> None:
    arrivals = tuple(Arrival(i / 2.0, "mini", 800, 150) for i in range(int(60 * req_per_s)))
    assert fleet(500.0, arrivals) == fleet(0.0, arrivals)
