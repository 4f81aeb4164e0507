"""Writes the page of `loadtests.ablation`: each rule, and what its removal costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from loadtests.ablation_rules import WITH_ALL, Case, Figures, Rule


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of one removal on one trace, as means over the seeds. acts: whether the rule made
    a difference. usd: relative change of the cost. points: change of the attainment in percentage
    points. costs: whether the removal costs more than the noise."""

    trace: str
    acts: bool
    usd: float
    points: float
    costs: bool


def _runs(trace: str, rule: str, found: Mapping[Case, Figures]) -> dict[int, Figures]:
    return {
        case.seed: run for case, run in found.items() if (case.trace, case.rule) == (trace, rule)
    }


def _noise(trace: str, found: Mapping[Case, Figures]) -> tuple[float, float]:
    """(relative noise of the cost, noise of the attainment in points) between seeds."""
    runs = list(_runs(trace, WITH_ALL, found).values())
    if len(runs) < 2:
        return 0.0, 0.0
    usd = [run.usd for run in runs]
    return stdev(usd) / fmean(usd), 100.0 * stdev(run.attained for run in runs)


def _effect(rule: Rule, trace: str, found: Mapping[Case, Figures]) -> Effect:
    with_all, without = _runs(trace, WITH_ALL, found), _runs(trace, rule.name, found)
    pairs = [(run, without.get(seed, run)) for seed, run in with_all.items()]
    usd = fmean(less.usd / run.usd - 1.0 for run, less in pairs)
    points = 100.0 * fmean(less.attained - run.attained for run, less in pairs)
    usd_noise, points_noise = _noise(trace, found)
    return Effect(trace, bool(without), usd, points, usd > usd_noise or -points > points_noise)


def effects(rule: Rule, traces: Sequence[str], found: Mapping[Case, Figures]) -> list[Effect]:
    """The effect of the removal of `rule` on each of `traces`."""
    return [_effect(rule, trace, found) for trace in traces]


def write(
    path: Path,
    rules: Sequence[Rule],
    traces: Sequence[str],
    found: Mapping[Case, Figures],
    how: str,
) -> None:
    """Write the page. traces: names. how: text about the runs."""
    lines = [
        "# What each rule is worth",
        "",
        f"{how} The noise of a trace is the standard deviation of its runs with all rules. A "
        "removal costs if the cost rises, or the attainment falls, by more than this noise.",
        "",
        "| rule | part | makes a difference | cost | attainment | removal costs on |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for rule in rules:
        each = effects(rule, traces, found)
        acts = [one for one in each if one.acts]
        costs = [one.trace for one in each if one.costs]
        usd, points = fmean(one.usd for one in each), fmean(one.points for one in each)
        lines.append(
            f"| {rule.name} | {rule.group} | {len(acts)} of {len(each)} traces | {usd:+.2%} "
            f"| {points:+.2f} points | {', '.join(costs) or 'none'} |"
        )
    noises = [_noise(trace, found) for trace in traces]
    lines += ["", "| trace | noise of cost | noise of attainment |", "| --- | --- | --- |"]
    for trace, (usd, points) in zip(traces, noises, strict=True):
        lines.append(f"| {trace} | {usd:.2%} | {points:.2f} points |")
    path.write_text("\n".join(lines) + "\n")
