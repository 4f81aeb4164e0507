"""The summary of a run: what was asked, served, spent and decided, as JSON and for people.

Owns the form of `--summary` (docs/summary.md says what each key means). Pure but for writing the
file. Latencies and reactions are in domain time, lateness and overhead in real milliseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from autoscaler.serving.billing import Bill
from streams.up.picture import Picture

JUDGED_UP_TO_SPEED = 5.0


def summarize(
    report: Mapping[str, Any],
    picture: Picture,
    bill: Bill,
    overhead_ms: Mapping[str, float | None],
    speed: float,
    wall_s: float,
    restarts: Mapping[str, int],
) -> dict[str, Any]:
    """The summary; `report` is the replayer's (empty where it never got to write one)."""
    counted = Counter(decision.kind for decision in picture.decisions)
    nothing = {"sent": 0, "served": 0, "failed": 0, "dropped": 0}
    unknown: dict[str, float | None] = {"p50": None, "p99": None}
    return {
        "requests": report.get("requests", nothing),
        "models": report.get("models", {}),
        "cost_usd": round(bill.usd, 4),
        "gpu_hours": {name: round(hours, 4) for name, hours in sorted(bill.gpu_hours.items())},
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
    """Print the summary for people."""
    requests = summary["requests"]

    def say(line: str) -> None:
        console.print(line, soft_wrap=True)  # the terminal folds; a file keeps lines whole

    say(
        f"\n{requests['sent']} requests sent, {requests['served']} served, "
        f"{requests['failed']} failed, {requests['dropped']} dropped in {summary['wall_s']:.0f} s "
        f"at speed {summary['speed']:g}"
    )
    if not requests["sent"]:
        say("no request was sent: the run ended before the first fleet was ready")
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
    console.print(table)
    gpus = ", ".join(f"{hours:.2f} {name}" for name, hours in summary["gpu_hours"].items())
    say(f"cost {summary['cost_usd']:.2f} USD, GPU hours: {gpus or 'none'}")
    decisions = ", ".join(f"{count} {kind}" for kind, count in summary["decisions"].items())
    say(f"decisions: {decisions or 'none'}")
    if summary["reaction_s"]:
        worst = max(summary["reaction_s"])
        say(f"reaction: {len(summary['reaction_s'])} scale-outs, slowest {worst:.1f} s")
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


def _quantiles(values: Mapping[str, float | None]) -> str:
    return "/".join(_plain(values.get(q)) for q in ("p50", "p95", "p99")) + " ms"


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms"
