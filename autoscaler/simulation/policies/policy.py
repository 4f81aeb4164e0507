"""A policy of a backtest: a name, one main knob, and a function that sets up a run.

Each policy is one file in this folder and one line in `built_in`, or an extension.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from autoscaler.domain.cluster import Service
from autoscaler.domain.workload import Lengths
from autoscaler.simulation.arrivals import fitting_arrivals, measured_lengths, p99_10s_req_per_s
from autoscaler.simulation.decider import Decider
from autoscaler.simulation.fleet_search import FleetSearch
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.virtual_planner import PlanFunction, plan_in_process


@dataclass(frozen=True, slots=True)
class PolicyContext:
    """Input of every policy.

    lengths: request lengths of the whole trace, per model. peaks: 99th percentile of the rate in
    spans of 10 s. means: mean rates of the whole trace. Baselines may use all of these to choose
    their hardware and to convert their knob to the rule's unit, which an operator would do by
    trial.
    fluid: whether rates are simulated instead of requests. searches: fleet searches by model, kept
    for further knobs of one policy.
    """

    scenario: Scenario
    lengths: Mapping[str, Lengths]
    peaks: Mapping[str, float]
    means: Mapping[str, float]
    fluid: bool = False
    searches: dict[str, FleetSearch] = field(default_factory=dict, compare=False)

    def lengths_of(self, service: Service) -> Lengths:
        """The lengths of the model's requests in the trace; the declared lengths if the trace has
        none."""
        return self.lengths.get(service.model, service.lengths)

    def peak_of(self, service: Service) -> float:
        """The peak rate of the trace in requests/s; 0 if the trace has no request of the model."""
        return self.peaks.get(service.model, 0.0)


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """One prepared run. key: equal for runs of one scenario with equal results; None = unknown."""

    scenario: Scenario
    decider: Decider
    plan: PlanFunction = plan_in_process
    key: tuple[tuple[str, int], ...] | None = None


Build = Callable[[PolicyContext, float], PolicyRun]


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy.

    about: one line for reports, including the hardware. knob: description of the main setting;
    default, values: values of this setting. source: the publication or code that defines the rule.
    published: the rule's other settings, with the values that the source gives as defaults.
    tuned: whether the knob can be tuned on another trace (False if the policy is fitted to the
    trace itself). tick_s: period of the policy's rule in s, if rates are simulated instead of
    requests (`rate_simulator`); None = the rule measures elapsed time and needs no period.
    """

    name: str
    about: str
    knob: str
    default: float
    values: tuple[float, ...]
    source: str
    build: Build
    tuned: bool = True
    tick_s: int | None = None
    published: str = ""


def policy_context(scenario: Scenario, fluid: bool = False) -> PolicyContext:
    """The context of `scenario`, with statistics of its demand."""
    services = scenario.cluster.services
    arrivals = fitting_arrivals(scenario.arrivals, services)
    times: dict[str, list[float]] = {service.model: [] for service in services}
    for arrival in arrivals:
        times.setdefault(arrival.model, []).append(arrival.at_s)
    span_s, weight_of = (0.0, max(10.0, scenario.duration_s)), scenario.weight_of
    return PolicyContext(
        scenario,
        {service.model: service.lengths for service in services} | measured_lengths(arrivals),
        {m: weight_of(m) * p99_10s_req_per_s(at_s, span_s) for m, at_s in times.items()},
        {m: weight_of(m) * len(at_s) / scenario.duration_s for m, at_s in times.items()},
        fluid,
    )
