"""What a policy is to a backtest: a name, one main knob, and a way to set up a run.

Owns the values. Each policy is one file beside this one and one line in `table`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autoscaler.domain.cluster import Service
from autoscaler.domain.workload import Lengths
from autoscaler.simulation.arrivals import measured_lengths, p99_of_10s_rates, that_fit
from autoscaler.simulation.decider import Decider
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.virtual_planner import Plan, plan_in_process


@dataclass(frozen=True, slots=True)
class Setting:
    """What every policy is given. lengths: of the whole trace, per model; peaks: 99th percentile
    of the rate in spans of 10 s; means: over the whole trace.

    Baselines may use all of it to choose their hardware and to convert their knob into their own
    unit: they are given what an operator would have found out by trying.
    """

    scenario: Scenario
    lengths: Mapping[str, Lengths]
    peaks: Mapping[str, float]
    means: Mapping[str, float]

    def lengths_of(self, service: Service) -> Lengths:
        """The lengths of the trace, the declared ones where it has no request of the model."""
        return self.lengths.get(service.model, service.lengths)

    def peak_of(self, service: Service) -> float:
        """The peak of the trace, at least what is declared."""
        return max(self.peaks.get(service.model, 0.0), service.req_per_s)


@dataclass(frozen=True, slots=True)
class Trial:
    """One run to come."""

    scenario: Scenario
    decider: Decider
    plan: Plan = plan_in_process


Build = Callable[[Setting, float], Trial]


@dataclass(frozen=True, slots=True)
class Policy:
    """knob: what its one main setting is, in words; default and values: of it. source: where the
    rule is written down. about: one line for reports, hardware included. tuned: whether sweeping
    its knob on another trace means anything (not for what is fitted to the trace itself). flows:
    whether it can be simulated with rates instead of requests (`fluid`): it counts in the time that
    has passed, not in ticks, and simulates no requests itself."""

    name: str
    about: str
    knob: str
    default: float
    values: tuple[float, ...]
    source: str
    build: Build
    tuned: bool = True
    flows: bool = False


def setting_of(scenario: Scenario) -> Setting:
    """What there is to know about the demand of `scenario`."""
    services = scenario.cluster.services
    arrivals = that_fit(scenario.arrivals, services)
    times: dict[str, list[float]] = {service.model: [] for service in services}
    for arrival in arrivals:
        times.setdefault(arrival.model, []).append(arrival.at_s)
    span_s, weight = (0.0, max(10.0, scenario.duration_s)), scenario.weight
    return Setting(
        scenario,
        {service.model: service.lengths for service in services} | measured_lengths(arrivals),
        {model: weight * p99_of_10s_rates(at_s, span_s) for model, at_s in times.items()},
        {model: weight * len(at_s) / scenario.duration_s for model, at_s in times.items()},
    )
