"""The summary of a run: its options, served requests, cost and decisions, as JSON and as text.

docs/explanation/summary.md describes the keys of `--summary`. Only writing the file is I/O.
Latencies and reactions are in domain time; lateness and overhead are in real milliseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from streams.plain_text import several
from streams.tools.up.event_log import clock
from streams.tools.up.run_state import Picture
from streams.tools.up.run_story import (
    chapters,
    mean_share_of_peak,
    saving_lines,
    story_lines,
)
from streams.tools.up.trace_facts import Traffic
from topics.records import ScoreSplit

JUDGED_UP_TO_SPEED = 5.0


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run and its trace ended. for_s: the value of --for, 0 = none.

    told: the replayer's last counts of requests, used if its report is missing.
    """

    traffic: Traffic
    for_s: float
    interrupted: bool
    told: Mapping[str, int] = field(default_factory=dict)

    def how(self, sent: int) -> str:
        """The value of the summary's key `ended`."""
        if self.interrupted:
            return "interrupted"
        if sent >= self.traffic.requests:
            return "whole trace"
        return "time given" if self.for_s and not self.told else "load lost"


def summarize(
    report: Mapping[str, Any],
    picture: Picture,
    now_ms: int,
    overhead_ms: Mapping[str, float | None],
    speed: float,
    wall_s: float,
    restarts: Mapping[str, int],
    ended: Ended,
    began_ms: int = 0,
) -> dict[str, Any]:
    """The summary.

    report: the replayer's report, empty if the replayer wrote none. began_ms: domain time of the
    run's start.
    """
    requests = report.get("requests") or _last_told(ended.told)
    models = report.get("models", {})
    counted = Counter(decision.kind for decision in picture.decisions)
    unknown: dict[str, float | None] = {"p50": None, "p99": None}
    return {
        "requests": requests,
        "failures": report.get("failures", {}),
        "slo_attainment": _attained(models),
        "trace": {
            "requests": ended.traffic.requests,
            "duration_s": round(ended.traffic.duration_s, 3),
            "gaps_s": [[round(g.start_s, 3), round(g.end_s, 3)] for g in ended.traffic.gaps],
        },
        "ended": ended.how(requests["sent"]),
        "models": models,
        "otherwise": [],
        "mean_share_of_peak": mean_share_of_peak(picture.demand),
        "spot_saving_usd": round(picture.spot_saving_usd(now_ms), 4),
        "story": [
            {"at_s": (one.at_ms - began_ms) / 1000.0, "what": one.what, "then": list(one.then)}
            for one in chapters(picture.story)
        ],
        "ways": [
            {
                "model": row.model,
                "kind": row.kind,
                "way": row.way,
                "requests": row.requests,
                "planned": round(row.planned, 4),
                "served": round(row.served, 4),
            }
            for row in picture.ways.rows()
        ],
        "thresholds": {
            name: _thresholds(routes.split)
            for name, routes in sorted(picture.routes.items())
            if routes.split is not None
        },
        "cost_usd": round(picture.usd(now_ms), 4),
        "gpu_hours": {
            name: round(hours, 4) for name, hours in sorted(picture.gpu_hours(now_ms).items())
        },
        "decisions": dict(sorted(counted.items())),
        "reaction_s": [round(value, 3) for value in picture.reactions_s()],
        "speed": speed,
        "wall_s": round(wall_s, 1),
        "replay_late_ms": report.get("replay_late_ms", unknown),
        "overhead_ms": dict(overhead_ms),
        "latency_judged": speed <= JUDGED_UP_TO_SPEED,
        "restarts": {name: count for name, count in restarts.items() if count},
    }


def show(summary: Mapping[str, Any], console: Console) -> None:
    """Print the summary as text."""
    requests = summary["requests"]

    def say(line: str) -> None:
        # On a terminal lines are wrapped between words; in a file they are not wrapped.
        console.print(line, soft_wrap=not console.is_terminal)

    say("")
    say(_cost_line(summary))
    say(
        f"{requests['sent']} requests sent, {requests['served']} served, "
        f"{requests['failed']} failed, {requests['dropped']} dropped in {summary['wall_s']:.0f} s "
        f"at speed {summary['speed']:g}"
    )
    for line in (*_early(summary), *_gaps(summary), *_failures(summary)):
        say(line)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("model", "requests", "TTFT p50/p95/p99", "TPOT p50/p95/p99", "SLO attained"):
        table.add_column(title, justify="left" if title == "model" else "right")
    for model, row in summary["models"].items():
        attained = row.get("slo_attainment")
        table.add_row(
            model,
            str(row["requests"]),
            _quantiles(row["ttft_ms"]),
            _quantiles(row["tpot_ms"]),
            "-" if attained is None else f"{attained:.1%}",
        )
    if summary["models"]:
        console.print(table)
    if summary["ways"]:
        console.print(_ways(summary["ways"]))
    for name, marks in summary["thresholds"].items():
        said = ", ".join("none" if mark is None else f"{mark:.4g}" for mark in marks)
        say(f"{name}: score thresholds {said} at the end")
    gpus = ", ".join(f"{hours:.2f} {name}" for name, hours in summary["gpu_hours"].items())
    say(f"cost {summary['cost_usd']:.2f} USD, GPU hours: {gpus or 'none'}")
    decisions = ", ".join(f"{count} {kind}" for kind, count in summary["decisions"].items())
    say(f"decisions: {decisions or 'none'}")
    if summary["reaction_s"]:
        worst = max(summary["reaction_s"])
        say(f"reaction: {several(len(summary['reaction_s']), 'scale-out')}, slowest {worst:.1f} s")
    late, overhead = summary["replay_late_ms"], summary["overhead_ms"]
    say(
        f"harness: generator late p50 {_ms(late['p50'])}, p99 {_ms(late['p99'])}; "
        f"own overhead p50 {_ms(overhead['p50'])}, p99 {_ms(overhead['p99'])} (real)"
    )
    if not summary["latency_judged"]:
        say(
            f"at speed {summary['speed']:g} the overhead counts {summary['speed']:g} times in the "
            f"latencies above: judge them at speed {JUDGED_UP_TO_SPEED:g} or less"
        )
    for line in (*story_lines(summary["story"]), *saving_lines(summary)):
        say(line)


def _last_told(told: Mapping[str, int]) -> dict[str, int]:
    """The counts of requests of a replay without a report. Requests without an answer count as
    dropped."""
    sent, served, failed = (told.get(key, 0) for key in ("sent", "served", "failed"))
    return {"sent": sent, "served": served, "failed": failed, "dropped": sent - served - failed}


def _thresholds(split: ScoreSplit) -> list[float | None]:
    """The score below which each model answers, except for the last one.

    None if the model gets all requests or none.
    """
    ends = (None, *split.edges, None)
    return [ends[cut] for cut in split.cuts]


def _attained(models: Mapping[str, Any]) -> float | None:
    """The share of all requests that met their model's SLO; None if no request was sent."""
    sent = sum(row["requests"] for row in models.values())
    met = sum(row["requests"] * (row.get("slo_attainment") or 0.0) for row in models.values())
    return round(met / sent, 6) if sent else None


def _cost_line(summary: Mapping[str, Any]) -> str:
    """The cost, the attainment, and the cost of the compared policies."""
    attained = summary["slo_attainment"]
    parts = [f"{summary['cost_usd']:.2f} USD"]
    unknown = "attainment not known" if summary["requests"]["sent"] else "nothing to attain"
    parts[0] += f", {unknown}" if attained is None else f", {attained:.1%} attained"
    for other in summary["otherwise"]:
        words = f"{other['what']} ({other['gpu']})" if "gpu" in other else other["what"]
        short = f" (serves {1.0 - other['unserved']:.0%})" if other["unserved"] >= 0.005 else ""
        parts.append(f"{words} {other['usd']:.2f}{short}")
    return "; ".join(parts)


def _early(summary: Mapping[str, Any]) -> list[str]:
    """The reason why the trace was not sent to its end, as text."""
    sent, total = summary["requests"]["sent"], summary["trace"]["requests"]
    why = {
        "interrupted": "it was interrupted",
        "time given": "the time of --for was over",
        "load lost": "the load generator was lost",
    }.get(summary["ended"])
    if why is None:
        return []
    if not sent:
        return [f"no request was sent: {why} before the first fleet was ready"]
    return [f"{sent} of the {total} requests of the trace were sent: {why}"]


def _gaps(summary: Mapping[str, Any]) -> list[str]:
    """Gaps without requests in the trace, in time of the trace."""
    gaps = [
        f"{clock(start * 1000)} to {clock(end * 1000)}" for start, end in summary["trace"]["gaps_s"]
    ]
    more = f" and {len(gaps) - 3} more" if len(gaps) > 3 else ""
    return [f"the trace itself has no requests from {', '.join(gaps[:3])}{more}"] if gaps else []


def _failures(summary: Mapping[str, Any]) -> list[str]:
    """The reasons of failed requests, as text: `246 failed: 503, no instance yet`."""
    failed, reasons = summary["requests"]["failed"], summary["failures"]
    if not failed:
        return []
    if not reasons:
        return [f"{failed} failed: the load generator ended before it reported why"]
    if len(reasons) == 1:
        return [f"{failed} failed: {next(iter(reasons))}"]
    return [f"{failed} failed: " + "; ".join(f"{n} {why}" for why, n in reasons.items())]


def _ways(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The routes of each kind of request: planned and served shares."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("kind", "way", "requests", "planned", "served"):
        table.add_column(title, justify="left" if title in ("kind", "way") else "right")
    for row in rows:
        shares = f"{row['planned']:.1%}", f"{row['served']:.1%}"
        kind = f"{row['model']}/{row['kind']}"
        table.add_row(kind, row["way"], str(row["requests"]), *shares)
    return table


def _quantiles(values: Mapping[str, float | None]) -> str:
    return "/".join(_plain(values.get(q)) for q in ("p50", "p95", "p99")) + " ms"


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms"
