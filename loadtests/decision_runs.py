"""Runs of simulated cases: their figures and their JSON.

Deterministic: equal cases and seeds give equal bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from autoscaler.planning.planner_messages import Urgency
from autoscaler.simulation.controller_under_test import ControllerUnderTest
from autoscaler.simulation.decider import Decider
from autoscaler.simulation.rate_simulator import simulate_rates
from autoscaler.simulation.run_measures import ComboCapacity, cost_usd, ordered_capacity
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.simulator import simulate
from autoscaler.simulation.supply_script import NodeLost
from autoscaler.simulation.timeline import Timeline
from loadtests.decision_cases import Case, Prepared, prepare
from loadtests.decision_figures import ModelFigures, StepFigures, model_figures, step_figures


@dataclass(frozen=True, slots=True)
class Run:
    """Figures of one run. step: None if the rate has no step."""

    scenario: str
    seed: int
    models: dict[str, ModelFigures]
    cost_usd: float
    billed_s: float
    judged_s: float
    step: StepFigures | None
    urgent_solves: int = 0
    full_solves: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the run as an entry of `runs[]`."""
        over = [figures.over_provisioning for figures in self.models.values()]
        return {
            "scenario": self.scenario,
            "seed": self.seed,
            "models": {
                model: {
                    "requests": figures.requests,
                    "served": figures.served,
                    "slo_attainment": figures.slo_attainment,
                    "slo_attainment_after_3_min": figures.late_attainment,
                    "over_provisioning": figures.over_provisioning,
                    "of_p99_need": figures.over_p99,
                    "reversals": len(figures.reversed.at_s),
                    "false_scale_outs": figures.false_scale_outs,
                }
                for model, figures in self.models.items()
            },
            "cost_usd": self.cost_usd,
            "usd_per_h": self.cost_usd / self.billed_s * 3600.0,
            "first_scale_out_s": self.step.first_scale_out_s if self.step else None,
            "sufficient_s": self.step.sufficient_s if self.step else None,
            "over_provisioning": sum(over) / len(over),
            "reversals_per_h": max(f.reversed.most_per_h for f in self.models.values()),
            "false_scale_outs": sum(f.false_scale_outs for f in self.models.values()),
            "urgent_solves": self.urgent_solves,
            "full_solves": self.full_solves,
            "model_days": len(self.models) * self.judged_s / 86_400.0,
        }


def run(case: Case, seed: int, timeline: Path | None = None) -> Run:
    """Simulate `case` with `seed` under the real controller."""
    prepared = prepare(case, seed)
    found = _simulator(case)(prepared.scenario, ControllerUnderTest())
    if timeline is not None:
        write_timeline(timeline, found)
    return judge(case.name, seed, prepared, found)


def run_with(case: Case, seed: int, decider: Decider) -> Run:
    """Simulate `case` with `seed` under another decider."""
    prepared = prepare(case, seed)
    return judge(case.name, seed, prepared, _simulator(case)(prepared.scenario, decider))


def _simulator(case: Case) -> Callable[[Scenario, Decider], Timeline]:
    return simulate_rates if case.fluid else simulate


def judge(name: str, seed: int, prepared: Prepared, found: Timeline) -> Run:
    """Return the figures of a finished run."""
    scenario, truth = prepared.scenario, prepared.truth
    cluster = scenario.cluster
    span_s = scenario.lead_s, scenario.end_s
    if prepared.step_s is None:
        mean = Counter(arrival.model for arrival in scenario.arrivals)
        shared = {model: count / scenario.duration_s for model, count in mean.items()}
    else:
        shared = {model: rate(prepared.step_s) for model, rate in truth.rates.items()}
    capacity = ComboCapacity(cluster, truth.lengths, shared)
    lost_s = [event.at_s for event in scenario.script if isinstance(event, NodeLost)]
    step = None
    if prepared.step_s is not None:
        service = cluster.services[0]
        need = truth.rates[service.model](prepared.step_s) / service.utilization
        ordered = ordered_capacity(found, capacity, service.model)
        step = step_figures(ordered, prepared.step_s, need)
    return Run(
        name,
        seed,
        {
            service.model: model_figures(
                service.model, found, cluster, capacity, truth, span_s, lost_s
            )
            for service in cluster.services
        },
        cost_usd(found),
        scenario.end_s,
        scenario.duration_s,
        step,
        sum(request.urgency is Urgency.URGENT for _, request in found.plan_requests),
        sum(request.urgency is Urgency.FULL for _, request in found.plan_requests),
    )


def write_timeline(path: Path, timeline: Timeline) -> None:
    """Write the timeline as JSON lines."""
    with path.open("wb") as out:
        for line in timeline.lines():
            out.write(orjson.dumps(line) + b"\n")


def as_json(runs: Sequence[Run], extra: dict[str, Any] | None = None) -> bytes:
    """Return the runs as a JSON text. extra: further keys of that text."""
    report = {"runs": [one.as_json() for one in runs], **(extra or {})}
    return orjson.dumps(report, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
