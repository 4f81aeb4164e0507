"""The release's scorecard: every policy on a fixed set of traces, written to docs/scorecard.md.

usage: python -m loadtests.scorecard [--work DIR] [--only NAME,...] [--out FILE] [--jobs N]
       [--share X] [--policies A,B,...]

Each scenario is one `shoal backtest`: knobs tuned on a shorter trace of the same kind with another
seed (of the bundled one: even arrivals at its mean rate), all policies and ours without each part.
Its JSON is kept in --work; a scenario whose JSON is there is not run again, so that the page can be
written from runs made one at a time.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from autoscaler.simulation.arrivals import (
    Arrival,
    Draw,
    Step,
    Swing,
    gamma_renewal,
    poisson,
    resampled_lengths,
    swinging,
)
from autoscaler.simulation.policies.table import DEFAULT, VARIANTS
from loadtests.decision_bench import BUNDLED_TRACE
from streams.backtest.charts import Series, line_chart
from streams.backtest.report import WITHIN
from streams.cli.main import main as shoal
from streams.replay.traces import load_trace

ROOT = Path(__file__).parents[1]
MODELS = {"chat": 0.25, "code": 0.3, "mini": 0.45}
Make = Callable[[str, float, float, Draw, np.random.Generator], list[Arrival]]
Random = np.random.Generator


@dataclass(frozen=True, slots=True)
class Scenario:
    """about: for the page. make: arrivals of one model at a mean rate for so many seconds, None =
    the bundled trace. span_s: of the trace that is judged; the one for tuning lasts half of it."""

    name: str
    about: str
    make: Make | None
    span_s: float = 3600.0


def _swing(model: str, rate: float, span_s: float, draw: Draw, random: Random) -> list[Arrival]:
    return swinging(model, Swing(rate, 4.0, span_s), span_s, draw, random)


def _bursts(model: str, rate: float, span_s: float, draw: Draw, random: Random) -> list[Arrival]:
    return gamma_renewal(model, rate, 3.5, span_s, draw, random)


def _steps(model: str, rate: float, span_s: float, draw: Draw, random: Random) -> list[Arrival]:
    low, high = 0.5 * rate, 2.0 * rate
    steps = [Step(0.0, low), Step(span_s / 3, high), Step(2 * span_s / 3, low)]
    return poisson(model, steps, span_s, draw, random)


def _even(model: str, rate: float, span_s: float, draw: Draw, random: Random) -> list[Arrival]:
    return poisson(model, [Step(0.0, rate)], span_s, draw, random)


SCENARIOS = (
    Scenario("conversation", "the bundled hour of Azure conversations, 5.5 req/s", None),
    Scenario("swing", "two hours that swing 4:1 around 5.5 req/s, once", _swing, 7200.0),
    Scenario("bursts", "an hour of Gamma arrivals with CV 3.5, 5.5 req/s", _bursts),
    Scenario("steps", "20 min at 2.75 req/s, 20 min at 11, 20 min at 2.75", _steps),
)
_RATE = 5.5


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0 done, else that of the backtest that failed."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.scorecard")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "scorecard")
    parser.add_argument("--only", default=",".join(s.name for s in SCENARIOS))
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "scorecard.md")
    parser.add_argument("--jobs", type=int, default=-1)
    parser.add_argument("--share", type=float, default=1.0, help="of the length of every trace")
    parser.add_argument("--policies", default=",".join((*DEFAULT, *VARIANTS)), metavar="A,B")
    args = parser.parse_args(argv)
    args.work.mkdir(parents=True, exist_ok=True)
    for scenario in SCENARIOS:
        found = args.work / f"{scenario.name}.json"
        if scenario.name not in args.only.split(",") or found.exists():
            continue
        trace = ["--trace", str(_trace(scenario, args.work, 1, args.share))]
        tune = ["--tune", str(_trace(scenario, args.work, 2, args.share))]
        if scenario.make is None and args.share < 1.0:
            trace += ["--to", f"{args.share * scenario.span_s:.0f}s"]
        code = shoal(
            ["backtest", *trace, *tune, "--policies", args.policies, "--jobs", str(args.jobs),
             "--json", str(found)]
        )  # fmt: skip
        if code:
            return code
    reports = {
        s: orjson.loads((args.work / f"{s.name}.json").read_bytes())
        for s in SCENARIOS
        if (args.work / f"{s.name}.json").exists()
    }
    write(args.out, reports, args.share)
    print(f"{args.out}: {len(reports)} of {len(SCENARIOS)} scenarios")
    return 0


def _trace(scenario: Scenario, folder: Path, seed: int, share: float) -> Path:
    """The trace of a scenario as a file: seed 1 is judged, seed 2 is for tuning."""
    if scenario.make is None and seed == 1:
        return BUNDLED_TRACE
    path = folder / f"{scenario.name}-{seed}.csv"
    random = np.random.default_rng([seed, *scenario.name.encode()])
    trace = load_trace(BUNDLED_TRACE)
    draw = resampled_lengths(list(zip(trace.input_tokens, trace.output_tokens, strict=True)))
    arrivals: list[Arrival] = []
    for model, share in MODELS.items():
        make = scenario.make or _even
        span_s = share * scenario.span_s / seed
        arrivals += make(model, share * _RATE, span_s, draw, random)
    arrivals.sort(key=lambda a: a.at_s)
    rows = [f"{a.at_s:.3f},{a.model},{a.input_tokens},{a.output_tokens}" for a in arrivals]
    path.write_text("\n".join(["time,model,input_tokens,output_tokens", *rows]) + "\n")
    return path


def write(path: Path, reports: dict[Scenario, dict[str, Any]], share: float) -> None:
    """The page and its charts."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    today = datetime.now(UTC).date().isoformat()
    charts = path.with_suffix("")
    charts.mkdir(exist_ok=True)
    parts = [
        "# Scorecard",
        "",
        f"{today}, commit {commit}. Written by `python -m loadtests.scorecard`; the figures are "
        "defined in [backtest.md](backtest.md). Three models on the bundled configuration "
        "(`streams/data/backtest.yaml`). Each policy's knob, ours too, was swept on another trace "
        "of the same kind and set to the cheapest value that reached 95% there. One seed.",
        *([f"Every trace was cut to {share:.0%} of its length."] if share < 1.0 else []),
        "",
        *_summary(reports),
    ]
    for scenario, report in reports.items():
        chart = charts / f"{scenario.name}.svg"
        chart.write_text(_chart(report))
        parts += ["", f"## {scenario.name}: {scenario.about}", ""]
        parts += _table(report)
        parts += ["", f"![cost against attainment]({charts.name}/{chart.name})"]
    path.write_text("\n".join(parts) + "\n")


def _summary(reports: dict[Scenario, dict[str, Any]]) -> list[str]:
    lines = [
        "| trace | shoal | cheapest other as good (within 0.5 points) | as good and cheaper |",
        "| --- | --- | --- | --- |",
    ]
    for scenario, report in reports.items():
        ours = _named(report, "shoal")
        others = [p for p in report["policies"] if p["simulated"] and not _is_ours(p)]
        equal = [p for p in others if p["slo_attainment"] >= ours["slo_attainment"] - WITHIN]
        best = min(equal, key=lambda p: p["cost_usd"], default=None)
        shown = "none" if best is None else f"{best['name']}: {_brief(best)}"
        under = ", ".join(ours["undercut_by"]) or "none"
        lines.append(f"| {scenario.name} | {_brief(ours)} | {shown} | {under} |")
    found = [name for name in VARIANTS if all(_has(report, name) for report in reports.values())]
    if not found:
        return lines
    lines += ["", "Ours without one part, against ours: cost, attainment.", ""]
    lines += ["| part | " + " | ".join(s.name for s in reports) + " |"]
    lines += ["| --- |" + " --- |" * len(reports)]
    for name in found:
        cells = []
        for report in reports.values():
            ours, without = _named(report, "shoal"), _named(report, name)
            usd = 100.0 * (without["cost_usd"] / ours["cost_usd"] - 1.0)
            points = 100.0 * (without["slo_attainment"] - ours["slo_attainment"])
            cells.append(f"{usd:+.1f}%, {points:+.2f} points")
        lines.append(f"| {name.removeprefix('shoal-no-')} | " + " | ".join(cells) + " |")
    return lines


def _table(report: dict[str, Any]) -> list[str]:
    lines = [
        "| policy | SLO met | USD | over oracle | unserved | reaction | reversals/h | starts "
        "| knob |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for policy in sorted(report["policies"], key=lambda p: p["cost_usd"]):
        if not policy["simulated"]:
            lines.append(f"| {policy['name']} | (bound) | {policy['cost_usd']:.2f} |" + " |" * 6)
            continue
        over = policy["regret_to_oracle"]
        knob = policy["knob"]["value"]
        lines.append(
            f"| {policy['name']} | {100 * policy['slo_attainment']:.2f}% "
            f"| {policy['cost_usd']:.2f} | {'-' if over is None else f'{100 * over:+.0f}%'} "
            f"| {100 * policy['unserved_fraction']:.2f}% | {policy['reaction_s']:.0f} s "
            f"| {policy['reversals_per_h']:.0f} | {policy['starts']:.0f} | {knob:g} |"
        )
    return lines


def _chart(report: dict[str, Any]) -> str:
    points = {
        p["name"]: (p["cost_usd"], 100.0 * p["slo_attainment"])
        for p in report["policies"]
        if p["simulated"] and p["name"] not in VARIANTS
    }
    low = min(share for _, share in points.values()) - 1.0
    series = [Series(name, (), point) for name, point in points.items()]
    svg = line_chart(series, "USD", "requests that met their SLO, %", (max(0.0, low), 100.0))
    style = (
        "<style>text{font:11px sans-serif;fill:#1d2733}.grid{stroke:#e6ebf0}</style>"
        '<rect width="100%" height="100%" fill="#fff"/>'
    )
    head = '<svg xmlns="http://www.w3.org/2000/svg" '
    return svg.replace("<svg ", head, 1).replace(">", ">" + style, 1) + "\n"


def _named(report: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(p for p in report["policies"] if p["name"] == name)
    return found


def _has(report: dict[str, Any], name: str) -> bool:
    return any(policy["name"] == name for policy in report["policies"])


def _is_ours(policy: dict[str, Any]) -> bool:
    return bool(policy["name"].startswith("shoal"))


def _brief(policy: dict[str, Any]) -> str:
    return f"{policy['cost_usd']:.2f} USD, {100 * policy['slo_attainment']:.2f}%"


if __name__ == "__main__":
    sys.exit(main())
