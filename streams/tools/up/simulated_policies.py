"""Other policies in the world of a run: its requests, prices, offers and faults, simulated.

The policies have their default parameters. Shoal is simulated too, because a simulation has none of
the delays of real processes. Pure; the caller's clock limits the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.validation import InvalidValue
from autoscaler.simulation.arrivals import Arrival
from autoscaler.simulation.policies.policy import policy_context
from autoscaler.simulation.policies.registry import POLICIES
from autoscaler.simulation.policy_score import score
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.simulator import simulate
from autoscaler.simulation.supply_script import LaunchesFail, NodesLost, ScriptEvent
from streams.tools.replay.demand_changes import with_changes
from streams.tools.replay.request_schedule import schedule
from streams.tools.replay.traces import Trace
from streams.tools.up.scenario_file import DemandChanged, ScenarioEvent, demand_changes
from streams.tools.up.trace_facts import Span, longest_of, weights

NAMES = ("hpa-utilization", "hpa-rate", "skyserve", "shoal")
_MOST_REQUESTS = 50_000
"""Longer runs are not simulated, because that would take minutes."""


@dataclass(frozen=True, slots=True)
class SimulatedPolicy:
    """The result of one policy. slo_attainment, least: share of all requests, and of those of the
    worst model, that met their SLO."""

    policy: str
    usd: float
    slo_attainment: float
    least: float

    def as_json(self) -> dict[str, Any]:
        """The result as an entry of the summary."""
        return {
            "policy": self.policy,
            "usd": round(self.usd, 4),
            "slo_attainment": round(self.slo_attainment, 6),
            "least": round(self.least, 6),
        }


def world(
    cluster: Cluster, trace: Trace, events: tuple[ScenarioEvent, ...], seed: int, span: Span
) -> Scenario | None:
    """The run as a scenario of the simulation; None if it cannot be simulated: it sent no or too
    many requests, or it has components or services of several models."""
    composed = any(service.graph is not None for service in cluster.services)
    if cluster.routes or composed or not 0 < span.sent <= _MOST_REQUESTS:
        return None
    jobs = schedule(trace, weights(cluster), longest_of(cluster), seed, math.inf)
    arrivals = [
        Arrival(
            job.at_ms / 1000.0,
            job.model,
            job.input_tokens,
            job.output_tokens,
            session=job.session,
            delay_s=None if job.delay_ms is None else job.delay_ms / 1000.0,
            blocks=job.blocks,
        )
        for job in with_changes(jobs, demand_changes(events), seed)[: span.sent]
    ]
    script = tuple(_shifted(one, span.lead_s) for one in events if not _is_demand(one))
    duration_s = max(1.0, span.duration_s)
    return Scenario(cluster, arrivals, duration_s, max(0.0, span.lead_s), script, seed=seed)


def simulated(
    scenario: Scenario,
    elapsed_s: Callable[[], float],
    limit_s: float,
    names: Sequence[str] = NAMES,
) -> Iterator[SimulatedPolicy]:
    """Yields the results one by one. A policy that cannot serve every model is left out. No
    simulation starts after `limit_s`. elapsed_s: a clock from 0."""
    context = policy_context(scenario)
    for name in names:
        if elapsed_s() >= limit_s:
            return
        policy = POLICIES[name]
        try:
            trial = policy.build(context, policy.default)
        except InvalidValue:  # No single node holds a model, as this policy needs it.
            continue
        found = score(
            simulate(trial.scenario, trial.decider, trial.plan), scenario, context.lengths
        )
        shares = [one.attained / one.requests for one in found.models.values() if one.requests]
        yield SimulatedPolicy(name, found.cost_usd, found.slo_attainment, min(shares, default=1.0))


def _is_demand(event: ScenarioEvent) -> bool:
    return isinstance(event, DemandChanged)


def _shifted(event: ScenarioEvent, lead_s: float) -> ScriptEvent:
    """`event` at its time of the simulation, which begins `lead_s` before the trace. Events of
    second 0 hold from the start."""
    assert not isinstance(event, DemandChanged)  # noqa: S101  callers leave these out
    at_s = event.at_s + lead_s if event.at_s > 0.0 else 0.0
    if isinstance(event, LaunchesFail | NodesLost):
        return replace(event, at_s=at_s, until_s=event.until_s + lead_s)
    return replace(event, at_s=at_s)
