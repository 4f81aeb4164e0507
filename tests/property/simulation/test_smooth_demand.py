"""If engines are as predicted and demand is smooth, no capacity is derated and no burst is seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from autoscaler.simulation.arrivals import Arrival
from autoscaler.simulation.controller_under_test import ControllerUnderTest
from autoscaler.simulation.decider import DeciderInput, DeciderOutput
from autoscaler.simulation.rate_simulator import simulate_rates
from autoscaler.simulation.scenario import Scenario
from loadtests.arrivals import Swing, lognormal_lengths
from tests.unit.simulation.simulation_builders import cluster, service
from topics.reason_codes import ReasonCode

DURATION_S, MOST_DRAWN = 3600, 6000


class Watched(ControllerUnderTest):
    """Remembers the lowest derating of any model, and the causes of all decisions."""

    def __init__(self) -> None:
        super().__init__()
        self.least = 1.0
        self.causes: set[str] = set()

    def decide(self, inputs: DeciderInput, now_ms: int) -> DeciderOutput:
        output = super().decide(inputs, now_ms)
        assert self.state is not None
        self.least = min(self.least, *(m.capacity.derate for m in self.state.models.values()))
        self.causes |= {code for one in output.decisions for code in one.codes}
        return output


def smooth(swing: Swing, output_tokens: float, seed: int) -> list[Arrival]:
    """Arrivals without any variation around the rate of `swing`; only their lengths are random."""
    random = np.random.default_rng(seed)
    draw = lognormal_lengths(1000.0, output_tokens, 0.7)
    arrived = np.cumsum([swing.req_per_s(at_s + 0.5) for at_s in range(DURATION_S)])
    times_s = np.interp(np.arange(0.5, arrived[-1]), [0.0, *arrived], range(DURATION_S + 1))
    return [Arrival(float(at_s), "mini", *draw(random)) for at_s in times_s]


# A failing example is not made smaller, because each run takes seconds.
@settings(max_examples=3, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@example(mean=105.0, ratio=2.4, period_s=2021.0, output_tokens=53.0, provision_s=244.0, seed=0)
@given(
    mean=st.floats(0.3, 3.0).map(lambda power: 10.0**power),
    ratio=st.floats(1.0, 5.0),
    period_s=st.floats(1800.0, 10_800.0),
    output_tokens=st.floats(50.0, 1000.0),
    provision_s=st.floats(0.0, 300.0),
    seed=st.integers(0, 1000),
)
def test_smooth_demand_derates_nothing_and_is_no_burst(
    mean: float,
    ratio: float,
    period_s: float,
    output_tokens: float,
    provision_s: float,
    seed: int,
) -> None:
    """However late new instances serve. Each arrival stands for `weight` requests, whose number is
    drawn from a Poisson distribution."""
    weight = max(1.0, mean * DURATION_S / MOST_DRAWN)
    swing = Swing(mean / weight, ratio, period_s)
    arrivals = smooth(swing, output_tokens, seed)
    declared = service(req_per_s=weight * swing.req_per_s(0.0), scale_in_after_s=300.0)
    where = cluster(declared, nodes=2000)
    late = tuple(replace(pool, provision_s=provision_s) for pool in where.pools)
    lead_s = 120.0 + provision_s
    scenario = Scenario(
        replace(where, pools=late),
        arrivals,
        DURATION_S,
        lead_s,
        weights={"mini": weight},
        seed=seed,
    )
    found = Watched()
    simulate_rates(scenario, found)
    assert found.least == 1.0
    assert not found.causes & {ReasonCode.BURST.value, ReasonCode.OVERESTIMATED.value}
