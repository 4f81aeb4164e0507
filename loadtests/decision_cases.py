"""Simulated cases: generated or recorded demand with a fleet, as scenarios.

A case and a seed become a `Scenario` and the true demand behind it. Traces and configurations are
read from files.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from autoscaler.domain.cluster import Cluster, Mode, Service
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Demand
from autoscaler.planning.planner_messages import PlanRequest, Urgency
from autoscaler.simulation.arrivals import Arrival, fitting_arrivals, measured_lengths
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.virtual_planner import plan_in_process
from loadtests.arrivals import (
    Draw,
    Step,
    Swing,
    gamma_renewal,
    lognormal_lengths,
    poisson,
    resampled_lengths,
    swinging,
)
from loadtests.decision_figures import Rate, Truth, smoothed_rates
from streams.files.shoal_yaml import load_config
from streams.tools.replay.request_schedule import schedule
from streams.tools.replay.traces import load_trace

GENERATED_CONFIG = Path(__file__).with_name("decision_cases.yaml")
_NO_SCALE_IN_S = 7 * 86_400.0
TRACE_CONFIG = Path(__file__).parents[1] / "streams" / "data" / "demo.yaml"


@dataclass(frozen=True, slots=True)
class Case:
    """One scenario to run with many seeds.

    kind: "trace", "steps", "gamma", "swing" or "steady". rates: rates before and after the step, or
    the mean rate. swing: highest rate of a swing relative to its lowest; its period is duration_s.
    before_s: seconds until the step. duration_s: seconds of arrivals; 0 = the whole trace. load:
    demand of a steady scenario as a share of the planned rate. fluid: whether rates are simulated
    instead of requests.
    """

    name: str
    kind: str
    config: Path
    trace: Path | None = None
    rates: tuple[float, ...] = ()
    cv: float = 1.0
    swing: float = 1.0
    before_s: float = 600.0
    duration_s: float = 0.0
    load: float = 0.75
    lead_s: float = 240.0
    lengths: Path | None = None
    gateways: int = 1
    fluid: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that is ready to start. step_s: simulated second at which the rate steps; None = no
    step.
    """

    scenario: Scenario
    truth: Truth
    step_s: float | None = None


def prepare(case: Case, seed: int) -> Prepared:
    """Build the run of `case` with `seed`; raises UserError or ConfigError for a faulty file."""
    cluster = acting(load_config(case.config, cautious=False).cluster)
    if case.kind == "trace":
        return _from_trace(case, cluster, seed)
    if len(cluster.services) != 1:
        raise InvalidValue("--config: models", len(cluster.services), "1 for a generated scenario")
    service = cluster.services[0]
    random = np.random.default_rng(seed)
    draw = _lengths(case, service)
    end_s = case.duration_s
    step_s: float | None = None
    steps: tuple[Step, ...] = (Step(0.0, case.rates[0]),)
    rate = _rate_of(steps, case.lead_s)
    if case.kind == "gamma":
        found = gamma_renewal(service.model, case.rates[0], case.cv, end_s, draw, random)
        declared = replace(service, req_per_s=case.rates[0])
    elif case.kind == "swing":
        swing = Swing(case.rates[0], case.swing, end_s)
        found = swinging(service.model, swing, end_s, draw, random)
        declared = replace(service, req_per_s=swing.req_per_s(0.0))
        rate = _shifted(swing.req_per_s, case.lead_s)
    elif case.kind == "steps":
        end_s += case.before_s
        step_s = case.lead_s + case.before_s
        steps = (*steps, Step(case.before_s, case.rates[1]))
        found = poisson(service.model, steps, end_s, draw, random)
        declared = replace(service, req_per_s=case.rates[0])
        rate = _rate_of(steps, case.lead_s)
    else:
        found = poisson(service.model, steps, end_s, draw, random)
        declared = _sized(cluster, service, case.rates[0] / case.load)
    return Prepared(
        Scenario(
            replace(cluster, services=(declared,)),
            found,
            end_s,
            lead_s=case.lead_s,
            gateways=case.gateways,
        ),
        Truth({service.model: rate}, measured_lengths(found)),
        step_s,
    )


def acting(cluster: Cluster) -> Cluster:
    """`cluster` with every service in mode act, because recommendations change nothing."""
    return replace(
        cluster, services=tuple(replace(service, mode=Mode.ACT) for service in cluster.services)
    )


def _from_trace(case: Case, cluster: Cluster, seed: int) -> Prepared:
    if case.trace is None:
        raise InvalidValue("--trace", None, "a file")
    trace = load_trace(case.trace)
    whole_s = max(1.0, trace.duration_s + 1e-3)
    duration_s = min(case.duration_s or whole_s, whole_s)
    jobs = schedule(
        trace,
        {service.model: service.traffic_share for service in cluster.services},
        {service.model: service.max_len_tokens for service in cluster.services},
        seed,
        1000.0 * duration_s,
    )
    found = [Arrival(j.at_ms / 1000.0, j.model, j.input_tokens, j.output_tokens) for j in jobs]
    return Prepared(
        Scenario(cluster, found, max(1.0, duration_s), lead_s=case.lead_s, gateways=case.gateways),
        Truth(
            smoothed_rates(found, case.lead_s),
            measured_lengths(fitting_arrivals(found, cluster.services)),
        ),
    )


def _lengths(case: Case, service: Service) -> Draw:
    if case.lengths is not None:
        trace = load_trace(case.lengths)
        pairs = list(zip(trace.input_tokens, trace.output_tokens, strict=True))
        return resampled_lengths([p for p in pairs if sum(p) <= service.max_len_tokens])
    lengths = service.lengths
    most = service.max_len_tokens
    return lognormal_lengths(lengths.input_tokens, lengths.output_tokens, 1.0, most)


def _sized(cluster: Cluster, service: Service, req_per_s: float) -> Service:
    """Declare `service` with a fleet that is planned for `req_per_s` and keeps that size.

    A minimum and a long scale-in time keep the fleet from shrinking to the demand. A smaller fleet
    would change the requested load.
    """
    demand = Demand(service.model, req_per_s, service.lengths)
    request = PlanRequest(1, Urgency.FULL, 0, (demand,), scope=(service.model,))
    planned = sum(count for _, count in plan_in_process(request, cluster).counts)
    return replace(
        service,
        req_per_s=req_per_s,
        min_instances=max(1, planned),
        scale_in_after_s=_NO_SCALE_IN_S,
    )


def _shifted(rate: Rate, lead_s: float) -> Rate:
    return lambda at_s: rate(at_s - lead_s) if at_s >= lead_s else 0.0


def _rate_of(steps: tuple[Step, ...], lead_s: float) -> Rate:
    def rate(at_s: float) -> float:
        passed = [step.req_per_s for step in steps if step.at_s + lead_s <= at_s]
        return passed[-1] if passed else 0.0

    return rate
