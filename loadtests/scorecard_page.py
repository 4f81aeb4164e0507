"""Page of the scorecard: tables and charts from the JSON of its backtests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autoscaler.simulation.hindsight.hindsight_cost import BOUND_NAME
from autoscaler.simulation.policies.registry import POLICIES, VARIANTS
from loadtests.experiments.page import standalone
from loadtests.fleet_chart import fleet_chart
from streams.tools.backtest.backtest_report import WITHIN
from streams.tools.backtest.svg_charts import Series, line_chart

Report = dict[str, Any]
HINDSIGHT = ("fixed-best", "fixed-peak")
"""Policies that know the judged trace beforehand."""
_LARGE_FLEET = 4
"""Models from which on a picture shows the fleet over time."""


def write(
    path: Path, reports: Mapping[str, tuple[str, Report]], left_out: Sequence[str], head: str
) -> None:
    """Write the page and its charts. reports: scenario -> (description, JSON)."""
    charts = path.with_suffix("")
    charts.mkdir(parents=True, exist_ok=True)
    parts = ["# Scorecard", "", head, ""]
    if left_out:
        parts += [f"Not run: {', '.join(left_out)} (no trace file, or not asked for).", ""]
    parts += _summary({name: report for name, (_, report) in reports.items()})
    for name, (about, report) in reports.items():
        chart = charts / f"{name}.svg"
        chart.write_text(_chart(report))
        asked = sum(model["requests"] for model in report["models"].values())
        parts += ["", f"## {name}", ""]
        draws = len(report.get("also", ())) + 1
        more = f" in {draws} draws" if draws > 1 else ""
        parts += [f"{about} {asked} requests in {report['duration_s'] / 60:.1f} min{more}.", ""]
        parts += _table(report)
        if old := _old_knobs(report):
            parts += ["", old]
        parts += ["", f"![cost against attainment]({charts.name}/{chart.name})"]
        if len(report["models"]) >= _LARGE_FLEET and (svg := fleet_chart(_compared(report))):
            over_time = charts / f"{name}-over-time.svg"
            over_time.write_text(standalone(svg))
            parts += ["", f"![GPUs by type over time]({charts.name}/{over_time.name})"]
    path.write_text("\n".join(parts) + "\n")


def _compared(report: Report) -> list[Report]:
    """Ours and the next best: the cheapest other policy that attains as much (within 0.5 points),
    else the one that attains the most."""
    ours = _named(report, "shoal")
    others = [p for p in report["policies"] if p["simulated"] and not _is_ours(p)]
    equal = [p for p in others if p["slo_attainment"] >= ours["slo_attainment"] - WITHIN]
    if equal:
        return [ours, min(equal, key=lambda p: p["cost_usd"])]
    return [ours, *sorted(others, key=lambda p: -p["slo_attainment"])[:1]]


def _summary(reports: Mapping[str, Report]) -> list[str]:
    lines = [
        "A policy is *as good* as Shoal if its attainment is at most 0.5 points lower.",
        "",
        "| trace | shoal | cheapest other that is as good | as good and cheaper |",
        "| --- | --- | --- | --- |",
    ]
    for name, report in reports.items():
        ours = _named(report, "shoal")
        others = [p for p in report["policies"] if p["simulated"] and not _is_ours(p)]
        equal = [p for p in others if p["slo_attainment"] >= ours["slo_attainment"] - WITHIN]
        best = min(equal, key=lambda p: p["cost_usd"], default=None)
        shown = "none" if best is None else f"{best['name']}: {_brief(best)}"
        under = ", ".join(ours["undercut_by"]) or "none"
        lines.append(f"| {name} | {_brief(ours)} | {shown} | {under} |")
    return [*lines, "", *_exceptions(reports), *_parts(reports)]


def _exceptions(reports: Mapping[str, Report]) -> list[str]:
    """Each policy with at least our attainment at a lower cost, and the causes
    of the difference.
    """
    lines = [
        f"- {name}, {other}: {_cause(_named(report, 'shoal'), _named(report, other))}"
        for name, report in reports.items()
        for other in _named(report, "shoal")["undercut_by"]
    ]
    if not lines:
        return ["No other policy is as good and cheaper.", ""]
    return ["Policies that are as good and cheaper:", "", *lines, ""]


def _cause(ours: Report, other: Report) -> str:
    """Explain the difference in figures: cost, GPU time, its price, and the inputs of the other
    policy."""
    less = 1.0 - other["cost_usd"] / ours["cost_usd"]
    points = 100.0 * (other["slo_attainment"] - ours["slo_attainment"])
    hours = other["gpu_hours"] / ours["gpu_hours"] - 1.0
    price = (other["cost_usd"] / other["gpu_hours"]) / (ours["cost_usd"] / ours["gpu_hours"]) - 1.0
    text = (
        f"{less:.1%} cheaper, {points:+.2f} points of attainment, {hours:+.0%} GPU hours, "
        f"{price:+.0%} per GPU hour."
    )
    gaps = {
        model: (_share(other["models"][model]) - _share(found), _share(found))
        for model, found in ours["models"].items()
    }
    model, (gap, share) = max(gaps.items(), key=lambda item: item[1][0])
    if gap > WITHIN:
        text += f" Shoal misses most at {model} ({share:.1%} met instead of {share + gap:.1%})."
    if other["name"] in HINDSIGHT:
        text += " This fixed fleet knows the trace beforehand."
    elif ours["starts"] > other["starts"]:
        text += f" Shoal starts {ours['starts']:.0f} instances instead of {other['starts']:.0f}."
    return text


def _share(model: Report) -> float:
    return float(model["attained"] / model["requests"]) if model["requests"] else 1.0


def _parts(reports: Mapping[str, Report]) -> list[str]:
    reports = {n: r for n, r in reports.items() if any(_has(r, v) for v in VARIANTS)}
    parts = [v for v in VARIANTS if all(_has(report, v) for report in reports.values())]
    if not parts or not reports:
        return []
    lines = [
        "Shoal without one part ([parts](../reference/backtest.md#policies)): change of its cost, "
        "and of its attainment in points.",
        "",
    ]
    lines += ["| trace | " + " | ".join(part.removeprefix("shoal-no-") for part in parts) + " |"]
    lines += ["| --- |" + " --- |" * len(parts)]
    for name, report in reports.items():
        ours = _named(report, "shoal")
        cells = []
        for part in parts:
            without = _named(report, part)
            usd = 100.0 * (without["cost_usd"] / ours["cost_usd"] - 1.0)
            points = 100.0 * (without["slo_attainment"] - ours["slo_attainment"])
            cell = f"{usd:+.1f}%, {points:+.2f}"
            cells.append("same" if cell == "+0.0%, +0.00" else cell)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def _table(report: Report) -> list[str]:
    lines = [
        "| policy | SLO met | USD | reaction | reversals/h | starts | knob |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    known = [
        policy
        for policy in report["policies"]
        if policy["cost_usd"] is not None and policy["name"] not in VARIANTS
    ]
    for policy in sorted(known, key=lambda p: p["cost_usd"]):
        if not policy["simulated"]:
            what = "bound" if policy["name"] == BOUND_NAME else "planned"
            lines.append(f"| {policy['name']} | ({what}) | {policy['cost_usd']:.2f} |" + " |" * 4)
            continue
        knob = policy["knob"]["value"]
        lines.append(
            f"| {policy['name']} | {_met(policy)} | {_usd(policy)} "
            f"| {policy['reaction_s']:.0f} s | {policy['reversals_per_h']:.0f} "
            f"| {policy['starts']:.0f} | {knob:g} |"
        )
    return lines


def _old_knobs(report: Report) -> str:
    """A note about policies whose knob has changed since their run."""
    found: dict[str, list[str]] = {}
    for policy in report["policies"]:
        known = POLICIES.get(policy["name"])
        if policy["simulated"] and known is not None and policy["knob"]["name"] != known.knob:
            found.setdefault(policy["knob"]["name"], []).append(policy["name"])
    return " ".join(
        f"Run when the knob of {', '.join(names)} was the {knob}." for knob, names in found.items()
    )


def _chart(report: Report) -> str:
    points = {
        p["name"]: (p["cost_usd"], 100.0 * p["slo_attainment"])
        for p in report["policies"]
        if p["simulated"] and p["name"] not in VARIANTS
    }
    low = min(share for _, share in points.values()) - 1.0
    series = [Series(name, (), point) for name, point in points.items()]
    svg = line_chart(series, "USD", "requests that met their SLO, %", (max(0.0, low), 100.0))
    return standalone(svg)


def _named(report: Report, name: str) -> Report:
    found: Report = next(p for p in report["policies"] if p["name"] == name)
    return found


def _has(report: Report, name: str) -> bool:
    return any(policy["name"] == name for policy in report["policies"])


def _is_ours(policy: Report) -> bool:
    return bool(policy["name"].startswith("shoal"))


def _brief(policy: Report) -> str:
    return f"{policy['cost_usd']:.2f} USD, {100 * policy['slo_attainment']:.2f}%"


def _usd(policy: Report) -> str:
    low, high = policy["intervals"]["cost_usd"]
    return f"{policy['cost_usd']:.2f}" + (f" ({low:.2f} to {high:.2f})" if low < high else "")


def _met(policy: Report) -> str:
    low, high = (100.0 * share for share in policy["intervals"]["slo_attainment"])
    return f"{100 * policy['slo_attainment']:.2f}%" + (
        f" ({low:.2f} to {high:.2f})" if low < high else ""
    )
