"""Pages of docs/results and the figures of the README, written from records.

A template in `templates` has the text of a page, and takes its figures from records. The template
`README.md` is the text between the marks `results` of the README.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from autoscaler.simulation.policies.registry import POLICIES
from loadtests.results import records, statistics
from loadtests.results.entry import NO_CHANCE, ROOT, Entry
from loadtests.results.records import Record
from loadtests.results.registry import ENTRIES
from loadtests.results.statistics import Estimate
from loadtests.scorecard import BASELINES, HINDSIGHT
from loadtests.scorecard_scenarios import SCENARIOS

TEMPLATES = Path(__file__).parent / "templates"
DOCS = ROOT / "docs" / "results"
README = "README.md"
ENOUGH, AS_GOOD = 0.95, 0.005
"""The share of requests within the SLO that a policy should reach; the difference that counts as
equal."""
STALE = "**older than the code**"
_MARKS = re.compile(r"(<!-- results[^\n]*-->\n).*?(<!-- /results -->)", re.DOTALL)


class NoRecord(Exception):
    """An entry was not measured yet."""


class View:
    """A record as templates see it."""

    def __init__(self, entry: Entry, record: Record) -> None:
        self.entry, self.record = entry, record
        self.figures = record.runs[0].figures
        self.cpu_s = record.cpu_s

    def values(self, *names: str) -> list[float]:
        """A figure of all seeds. names: the keys that lead to it."""
        return [_at(run.figures, names) for run in self.record.runs]

    def mean(self, *names: str) -> Estimate:
        """The mean of a figure over the seeds."""
        return statistics.estimate(self.values(*names))

    def relative(self, ours: Sequence[str], theirs: Sequence[str]) -> Estimate:
        """By which share one figure differs from another, over pairs of equal seeds."""
        return statistics.relative(self.values(*ours), self.values(*theirs))

    def ratio(self, ours: Sequence[str], theirs: Sequence[str]) -> Estimate:
        """One figure divided by another, over pairs of equal seeds."""
        change = self.relative(ours, theirs)
        return Estimate(1.0 + change.mean, change.half_width)

    def difference(self, ours: Sequence[str], theirs: Sequence[str]) -> Estimate:
        """By how much one figure differs from another, over pairs of equal seeds."""
        return statistics.difference(self.values(*ours), self.values(*theirs))

    def best(self, policy: str) -> str:
        """The value of the policy's grid that is the cheapest of those that meet the SLO for 95% of
        the requests, as means over the seeds; else the value that meets it for the most."""
        values = self.figures[policy]
        met = {value: self.mean(policy, value, "met").mean for value in values}
        enough = [value for value in values if met[value] >= ENOUGH]
        if enough:
            return min(enough, key=lambda value: self.mean(policy, value, "usd").mean)
        return max(values, key=lambda value: met[value])

    def rivals(self) -> list[tuple[str, str]]:
        """(policy, value of its parameter): every policy at its default, and at its best value."""
        return [
            (name, value)
            for name, by_value in self.figures.items()
            if name in POLICIES and name != "shoal"
            for value in dict.fromkeys((next(iter(by_value)), self.best(name)))
        ]

    def undercut_by(self) -> list[tuple[str, str]]:
        """Rivals that cost less than Shoal and attain at most half a point less, as means."""
        ours = self.mean("shoal", "usd").mean, self.mean("shoal", "met").mean
        return [
            (name, value)
            for name, value in self.rivals()
            if self.mean(name, value, "usd").mean < ours[0]
            and self.mean(name, value, "met").mean >= ours[1] - AS_GOOD
        ]

    def cheapest(self) -> tuple[str, str] | None:
        """The cheapest rival that attains at most half a point less than Shoal; None without
        one."""
        ours = self.mean("shoal", "met").mean
        able = [one for one in self.rivals() if self.mean(*one, "met").mean >= ours - AS_GOOD]
        return min(able, key=lambda one: self.mean(*one, "usd").mean, default=None)


def _at(figures: Mapping[str, Any], names: Sequence[str]) -> Any:
    found: Any = figures
    for name in names:
        found = found[name]
    return found


def shown(value: Estimate | float, digits: int = 2, scale: float = 1.0, sign: bool = False) -> str:
    """A figure, with the half width of its interval if there is one."""
    mean, half = (value.mean, value.half_width) if isinstance(value, Estimate) else (value, None)
    text = f"{scale * mean:{'+' if sign else ''},.{digits}f}"
    return text if half is None else f"{text} ± {scale * half:,.{digits}f}"


def percent(value: Estimate | float, digits: int = 1, sign: bool = False) -> str:
    """A share in percent."""
    text = shown(value, digits, 100.0, sign)
    return text.replace(" ±", "% ±", 1) + ("" if " ±" in text else "%")


@cache
def view(name: str) -> View:
    """The record of an entry."""
    entry = next(one for one in ENTRIES if one.name == name)
    record = records.read(name)
    if record is None:
        raise NoRecord(f"{name}: no record; run `make results ARGS={name}`")
    return View(entry, record)


def source(*names: str) -> str:
    """The line below a table: its command, seeds, commit, date and CPU seconds."""
    views = [view(name) for name in names]
    args = " ".join(names) if len(names) < 3 else names[0].partition("-")[0]
    seeds = sorted({run.seed for one in views for run in one.record.runs})
    chance = "no random draws" if tuple(seeds) == NO_CHANCE else f"seeds {_listed(seeds)}"
    commits = ", ".join(dict.fromkeys(one.record.commit for one in views))
    dates = ", ".join(dict.fromkeys(one.record.date for one in views))
    quoted = f'"{args}"' if " " in args else args
    parts = [
        f"`make results ARGS={quoted}`", chance, f"commit {commits}", dates,
        f"{sum(one.cpu_s for one in views):,.0f} CPU s",
    ]  # fmt: skip
    old = [one for one in views if not records.is_current(one.entry, one.record)]
    return "*" + ", ".join(parts) + "*" + (f", {STALE}" if old else "")


def _listed(seeds: Sequence[int]) -> str:
    return str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"


def _is_measured(name: str) -> bool:
    return records.path_of(name).exists()


def _environment() -> jinja2.Environment:
    measured = [one for one in SCENARIOS if _is_measured(f"scorecard-{one.name}")]
    scenarios = measured or SCENARIOS  # without any, the page is not written
    made = jinja2.Environment(  # noqa: S701  (the pages are Markdown)
        loader=jinja2.FileSystemLoader(TEMPLATES), undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    made.filters |= {"shown": shown, "percent": percent, "cpu_s": lambda name: view(name).cpu_s}
    made.tests["measured"] = _is_measured
    made.globals |= {
        "record": view, "source": source, "entries": ENTRIES, "policies": POLICIES,
        "scenarios": scenarios, "hindsight": HINDSIGHT, "stale": STALE, "baselines": BASELINES,
        "scorecards": [f"scorecard-{one.name}" for one in scenarios], "measured": _is_measured,
    }  # fmt: skip
    return made


def rendered(template: Path) -> tuple[Path, str]:
    """The file that is made from a template, and its text. Raises NoRecord."""
    text = _environment().get_template(template.name).render()
    if template.name != README:
        return DOCS / template.name, text
    readme = (ROOT / README).read_text(encoding="utf-8")
    return ROOT / README, _MARKS.sub(lambda marks: marks[1] + text + marks[2], readme)


def write_pages() -> list[str]:
    """Write every page again. Returns a line for each page that lacks a record."""
    records.named_commits(ENTRIES)
    view.cache_clear()
    missing = []
    for template in sorted(TEMPLATES.glob("*.md")):
        try:
            path, text = rendered(template)
        except NoRecord as error:
            missing.append(f"{template.name}: not written: {error.args[0]}")
        else:
            path.write_text(text, encoding="utf-8")
    return missing


def stale_pages() -> list[str]:
    """Pages whose text differs from that of the records, apart from marks of older code.

    A page that lacks a record is left out.
    """
    found = []
    for template in sorted(TEMPLATES.glob("*.md")):
        try:
            path, text = rendered(template)
        except NoRecord:
            continue
        if _plain(path.read_text(encoding="utf-8")) != _plain(text):
            found.append(str(path.relative_to(ROOT)))
    return found


def _plain(text: str) -> str:
    return text.replace(f", {STALE}", "")
