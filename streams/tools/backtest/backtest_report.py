"""The result of a backtest, as values and as JSON: one row per policy, and curves over its knob.

docs/how-to/backtest.md lists the keys of the JSON. Figures are means over seeds and traces. The
report depends neither on the clock nor on the machine: equal input gives equal bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from autoscaler.domain.cluster import Service
from autoscaler.simulation.cost_causes import CostCause, MissCause
from autoscaler.simulation.hindsight import hindsight_cost
from autoscaler.simulation.hindsight.hindsight_cost import Hindsight
from autoscaler.simulation.policy_score import Score
from streams.tools.backtest.backtest_demand import Workload
from streams.tools.backtest.backtest_runs import spread
from streams.tools.backtest.object_policy import policy_of
from streams.tools.playback.timeline_run import RecordedRun

WITHIN = 0.005
"""Attainments within this difference count as equal."""
FIGURES = (
    "cost_usd",
    "gpu_hours",
    "slo_attainment",
    "goodput_tokens_per_s",
    "unserved_fraction",
    "reaction_s",
    "reversals_per_h",
    "starts",
    "switches",
)
_SHOWN_WITH_INTERVAL = ("cost_usd", "slo_attainment", "goodput_tokens_per_s")


@dataclass(frozen=True, slots=True)
class Row:
    """The results of one policy at one setting of its knob: one score per trace and seed."""

    policy: str
    knob: float
    scores: tuple[Score, ...]

    def mean(self, figure: str) -> float:
        """The mean of a figure over traces and seeds."""
        values = [float(getattr(score, figure)) for score in self.scores]
        return sum(values) / len(values)

    def cost_by_cause(self) -> dict[CostCause, float]:
        """The rent by cause in USD: means over traces and seeds. The sum is the cost."""
        count = len(self.scores)
        return {cause: sum(s.causes.usd[cause] for s in self.scores) / count for cause in CostCause}

    def missed_by_cause(self) -> dict[MissCause, float]:
        """The share of all requests that missed their SLO, by cause."""
        asked = sum(score.requests for score in self.scores) or 1
        return {
            cause: sum(score.causes.missed[cause] for score in self.scores) / asked
            for cause in MissCause
        }


@dataclass(frozen=True, slots=True)
class Backtest:
    """The whole result. also: further traces, each simulated separately. workloads: of all traces.

    rows: one per policy, in the order of the options. curves: for each policy, one row per setting
    of its knob, on the same traces as `rows`. hindsight: mean over traces and seeds. tuned: by
    policy, the setting chosen by a sweep on another trace.
    recordings: runs of the first trace and seed for the console, if they were asked for.
    """

    traces: tuple[str, ...]
    also: tuple[str, ...]
    workloads: tuple[Workload, ...]
    seeds: tuple[int, ...]
    rows: tuple[Row, ...]
    curves: Mapping[str, tuple[Row, ...]]
    hindsight: Hindsight
    tuned: Mapping[str, float]
    recordings: tuple[RecordedRun, ...] = ()

    @property
    def size(self) -> str:
        """The size of the replayed traces, as text."""
        counts = (
            (sum(one.scenario.requests for one in self.workloads), "request"),
            (len(self.workloads[0].scenario.cluster.services), "model"),
            (len(self.seeds), "seed"),
        )
        requests, models, seeds = (f"{n} {word}{'' if n == 1 else 's'}" for n, word in counts)
        traces = f" in {len(self.workloads)} traces" if self.also else ""
        return f"{requests} in {self.duration_s / 60:.1f} min{traces}, {models}, {seeds}"

    @property
    def duration_s(self) -> float:
        """The duration of all traces together."""
        return sum(one.scenario.duration_s for one in self.workloads)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the traces. A note that is not about all traces names its trace."""
        names = ", ".join(self.traces), *self.also
        of: dict[str, list[str]] = {}
        for name, workload in zip(names, self.workloads, strict=True):
            for note in workload.notes:
                of.setdefault(note, []).append(name)
        return tuple(
            note if len(found) == len(names) else f"{', '.join(found)}: {note}"
            for note, found in of.items()
        )

    def undercut_by(self, row: Row) -> tuple[str, ...]:
        """Other policies with lower cost and at least the attainment of `row`,
        within half a point.
        """
        return tuple(
            other.policy
            for other in self.rows
            if not other.policy.startswith("shoal")
            and other.policy != row.policy
            and other.mean("slo_attainment") >= row.mean("slo_attainment") - WITHIN
            and other.mean("cost_usd") < row.mean("cost_usd")
        )


def regret(cost_usd: float, least_usd: float | None) -> float | None:
    """The cost above `least_usd`, as a fraction of it; None if it is unknown or 0."""
    return cost_usd / least_usd - 1.0 if least_usd else None


def as_json(found: Backtest) -> bytes:
    """The report of a backtest as JSON."""
    scenario = found.workloads[0].scenario
    value = {
        "traces": list(found.traces),
        "also": list(found.also),
        "config_hash": scenario.cluster.content_hash,
        "duration_s": round(found.duration_s, 3),
        "lead_s": scenario.lead_s,
        "seeds": list(found.seeds),
        "notes": list(found.notes),
        "models": {s.model: _model(found, s) for s in scenario.cluster.services},
        "policies": [*(_policy(found, row) for row in found.rows), *_hindsight(found)],
        "curves": {
            name: [
                {
                    "knob": row.knob,
                    "cost_usd": row.mean("cost_usd"),
                    "slo_attainment": row.mean("slo_attainment"),
                    "intervals": _intervals(row, ("cost_usd", "slo_attainment")),
                }
                for row in rows
            ]
            for name, rows in found.curves.items()
        },
    }
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _model(found: Backtest, service: Service) -> dict[str, Any]:
    requests = inputs = outputs = 0.0
    for scenario in (workload.scenario for workload in found.workloads):
        mine = [arrival for arrival in scenario.arrivals if arrival.model == service.model]
        weight = scenario.weight_of(service.model)
        requests += weight * len(mine)
        inputs += weight * sum(a.input_tokens for a in mine)
        outputs += weight * sum(a.output_tokens for a in mine)
    return {
        "requests": round(requests),
        "req_per_s": requests / found.duration_s,
        "mean_input_tokens": inputs / requests,
        "mean_output_tokens": outputs / requests,
        "slo": {"ttft_ms": service.slo.ttft_ms, "tpot_ms": service.slo.tpot_ms},
        "percentile": service.percentile,
    }


def _policy(found: Backtest, row: Row) -> dict[str, Any]:
    policy = policy_of(row.policy)
    return {
        "name": row.policy,
        "about": policy.about,
        "source": policy.source,
        "simulated": True,
        "knob": {"name": policy.knob, "value": row.knob, "tuned": row.policy in found.tuned},
        **{figure: row.mean(figure) for figure in FIGURES},
        "regret_to_hindsight": regret(row.mean("cost_usd"), found.hindsight.plan_usd),
        "regret_to_oracle": regret(row.mean("cost_usd"), found.hindsight.bound_usd),
        "cost_by_cause": {cause.value: usd for cause, usd in row.cost_by_cause().items()},
        "missed_by_cause": {cause.value: n for cause, n in row.missed_by_cause().items()},
        "undercut_by": list(found.undercut_by(row)),
        "intervals": _intervals(row, _SHOWN_WITH_INTERVAL),
        "models": {
            model: {
                "requests": sum(score.models[model].requests for score in row.scores),
                "served": sum(score.models[model].served for score in row.scores),
                "attained": sum(score.models[model].attained for score in row.scores),
            }
            for model in row.scores[0].models
        },
        "course": [
            {
                "at_s": round(point.at_s, 3),
                "req_per_s": round(point.req_per_s, 3),
                "usd_per_h": round(point.usd_per_h, 3),
                "gpus": {name: round(n, 3) for name, n in point.gpus_by_type.items() if n},
            }
            for point in row.scores[0].course
        ],
    }


def _intervals(row: Row, figures: Sequence[str]) -> dict[str, tuple[float, float]]:
    return {
        figure: spread([float(getattr(score, figure)) for score in row.scores])
        for figure in figures
    }


def _hindsight(found: Backtest) -> list[dict[str, Any]]:
    """The plan and the bound, as rows of policies that were not simulated."""
    known = found.hindsight
    nothing: dict[str, Any] = {**dict.fromkeys(FIGURES), "simulated": False}
    source = "autoscaler/simulation/hindsight/hindsight_cost.py"
    plan = {
        "name": hindsight_cost.NAME,
        "about": hindsight_cost.ABOUT,
        "source": source,
        **nothing,
        "cost_usd": known.plan_usd,
        "lower_bound_usd": known.plan_bound_usd,
        "gap": known.gap,
        "served_fraction": known.served,
        "slo_attainment": known.attainment * known.served,
        "regret_to_hindsight": None if known.plan_usd is None else 0.0,
        "regret_to_oracle": None
        if known.plan_usd is None
        else regret(known.plan_usd, known.bound_usd),
    }
    bound = {
        "name": hindsight_cost.BOUND_NAME,
        "about": hindsight_cost.BOUND_ABOUT,
        "source": source,
        **nothing,
        "cost_usd": known.bound_usd,
        "slo_attainment": known.attainment,
        "regret_to_hindsight": regret(known.bound_usd, known.plan_usd),
        "regret_to_oracle": 0.0,
    }
    return [plan, bound]


def table(found: Backtest) -> Sequence[tuple[str, ...]]:
    """Rows for display: a header, then one line per policy, cheapest first."""
    header = (
        "policy", "SLO met", "USD", "GPU h", "tokens/s", "unserved", "reaction", "reversals/h",
        "starts", "over hindsight",
    )  # fmt: skip
    lines = [header]
    for row in sorted(found.rows, key=lambda row: (row.mean("cost_usd"), row.policy)):
        over = regret(row.mean("cost_usd"), found.hindsight.plan_usd)
        lines.append(
            (
                row.policy,
                f"{100 * row.mean('slo_attainment'):.2f}%",
                f"{row.mean('cost_usd'):.2f}",
                f"{row.mean('gpu_hours'):.1f}",
                f"{row.mean('goodput_tokens_per_s'):.0f}",
                f"{100 * row.mean('unserved_fraction'):.2f}%",
                f"{row.mean('reaction_s'):.0f} s",
                f"{row.mean('reversals_per_h'):.0f}",
                f"{row.mean('starts'):.0f}",
                "-" if over is None else f"{100 * over:+.0f}%",
            )
        )
    known = found.hindsight
    for name, usd, met in (
        (hindsight_cost.NAME, known.plan_usd, known.attainment * known.served),
        (hindsight_cost.BOUND_NAME, known.bound_usd, known.attainment),
    ):
        over = None if usd is None else regret(usd, known.plan_usd)
        cells = ("-" if usd is None else f"{usd:.2f}", *("-",) * 6)
        last = "-" if over is None else f"{100 * over:+.0f}%"
        lines.append((name, f"({100 * met:.0f}%)", *cells, last))
    return lines


def cost_table(found: Backtest, rows: Sequence[Row]) -> Sequence[tuple[str, ...]]:
    """Rows for display: what the rent of each policy paid for, in USD."""
    causes = (cause.value.replace("_", " ") for cause in CostCause)
    header = ("policy", *causes, "USD", "over hindsight")
    lines = [header]
    least = found.hindsight.plan_usd
    for row in rows:
        usd = row.mean("cost_usd")
        over = "-" if least is None else f"{usd - least:+.2f}"
        parts = (f"{value:.2f}" for value in row.cost_by_cause().values())
        lines.append((row.policy, *parts, f"{usd:.2f}", over))
    return lines


def miss_table(rows: Sequence[Row]) -> Sequence[tuple[str, ...]]:
    """Rows for display: the share of requests that missed their SLO, by cause."""
    header = ("policy", *(cause.value.replace("_", " ") for cause in MissCause), "missed")
    lines = [header]
    for row in rows:
        parts = (f"{100 * share:.2f}%" for share in row.missed_by_cause().values())
        lines.append((row.policy, *parts, f"{100 * (1 - row.mean('slo_attainment')):.2f}%"))
    return lines
