"""The live view of a run: a line of facts, one table, what falls short, the last decisions.

Owns how it looks. On a terminal it redraws in place; elsewhere it prints a plain line per model
now and then and each decision once. Every figure has its unit.
"""

from __future__ import annotations

import datetime as dt
import sys
from dataclasses import dataclass

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from streams.up.picture import ModelRow, Picture
from topics.records import Decision, InstanceState

_COLUMNS = (
    "model", "req/s", "capacity", "load", "instances", "TTFT p95", "TPOT p95", "SLO met", "USD/h",
)  # fmt: skip
_DECISIONS_SHOWN = 6
_LEAST_MODEL = 8
_WORDS_ONLY = ("infeasible", "hold", "rebuilt")
_PHASE_LETTER = {"prefill": "p", "decode": "d", "aggregated": ""}
_SIGNS = {InstanceState.STARTING: "+", InstanceState.DRAINING: "-"}
_PLAIN_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class Facts:
    """What stands above the table. Times in real seconds, sent/served so far."""

    headline: str
    elapsed_s: float
    sent: int
    served: int
    usd_per_h: float
    usd: float
    late_p99_ms: float | None


class View:
    """Shows `Picture`s; `start`, `update` often, `stop`."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(file=sys.stdout, highlight=False)
        self._live: Live | None = None
        self._printed = 0
        self._next_plain_s = 0.0
        self._headline = ""

    def start(self) -> None:
        """Take the terminal, if there is one."""
        if self.console.is_terminal:
            self._live = Live(console=self.console, refresh_per_second=4, transient=False)
            self._live.start()

    def stop(self) -> None:
        """Give the terminal back."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def update(self, picture: Picture, now_ms: int, facts: Facts) -> None:
        """Show what is now."""
        if self._live is not None:
            self._live.update(draw(picture, now_ms, facts))
            return
        if facts.headline != self._headline:
            self._headline = facts.headline
            self.console.print(Text(facts.headline), soft_wrap=True)
        for decision in picture.decisions[self._printed :]:
            self.console.print(decision_line(decision), soft_wrap=True)
        self._printed = len(picture.decisions)
        if facts.elapsed_s >= self._next_plain_s:
            self._next_plain_s = facts.elapsed_s + _PLAIN_EVERY_S
            self.console.print(Text(_facts_line(facts)), soft_wrap=True)
            self.console.print("  " + "  ".join(_COLUMNS), soft_wrap=True)
            for row in picture.rows(now_ms):
                self.console.print("  " + "  ".join((row.model, *cells(row)[1:])), soft_wrap=True)
            for line in unmet_lines(picture, now_ms):
                self.console.print(line, soft_wrap=True)


def draw(picture: Picture, now_ms: int, facts: Facts) -> Group:
    """The whole view as one renderable."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in _COLUMNS:
        left = title in ("model", "instances")
        # Where the terminal is narrow long model names are cut, never a figure.
        table.add_column(
            title,
            justify="left" if left else "right",
            no_wrap=title != "model",
            overflow="ellipsis",
            min_width=_LEAST_MODEL if title == "model" else None,
        )
    for row in picture.rows(now_ms):
        table.add_row(*cells(row))
    decisions = [Text(decision_line(d)) for d in picture.decisions[-_DECISIONS_SHOWN:]]
    heading = Text(facts.headline, style="bold cyan")
    unmet = [
        Text(line, style="bold yellow", no_wrap=True, overflow="ellipsis")
        for line in unmet_lines(picture, now_ms)
    ]
    return Group(heading, Text(_facts_line(facts)), Text(""), table, *unmet, Text(""), *decisions)


def unmet_lines(picture: Picture, now_ms: int) -> list[str]:
    """One line per model whose demand or SLO cannot be met, the reason last."""
    return [f"{model} falls short: {why}" for model, why in picture.unmet(now_ms).items()]


def cells(row: ModelRow) -> tuple[str, ...]:
    """One model's cells; a dash is no data, which is not zero."""
    rate = "-" if row.req_per_s is None else _three_digits(row.req_per_s, 1)
    capacity = _three_digits(row.capacity_req_per_s, 1)
    load = "-"
    if row.req_per_s is not None and row.capacity_req_per_s > 0:
        load = f"{row.req_per_s / row.capacity_req_per_s:.0%}"
    met = "-" if row.attainment is None else f"{row.attainment:.1%}"
    return (
        row.model,
        rate,
        capacity,
        load,
        instances_text(row),
        f"{_seconds(row.ttft_p95_ms)}/{_seconds(row.ttft_limit_ms)} s",
        f"{_milliseconds(row.tpot_p95_ms)}/{_milliseconds(row.tpot_limit_ms)} ms",
        met,
        _three_digits(row.usd_per_h, 2),
    )


def instances_text(row: ModelRow) -> str:
    """Ready, starting (+) and draining (-) instances: "2 ready +1 -1", by phase "d: 2 +1, p: 1"."""
    parts = []
    for phase, states in sorted(row.instances.items()):
        letter = _PHASE_LETTER.get(phase, phase)
        ready = str(states.get(InstanceState.READY, 0))
        change = "".join(
            f" {sign}{states[state]}" for state, sign in _SIGNS.items() if states.get(state)
        )
        parts.append(f"{letter}: {ready}{change}" if letter else f"{ready} ready{change}")
    return ", ".join(parts) or "none"


def decision_line(decision: Decision) -> str:
    """`09:13:52 code scale_out: reason`, with what was only recommended said so."""
    at = dt.datetime.fromtimestamp(decision.at_ms / 1000.0, tz=dt.UTC)
    advice = not decision.applied and decision.kind not in _WORDS_ONLY
    applied = " (recommended, not applied)" if advice else ""
    return f"{at:%H:%M:%S} {decision.model} {decision.kind}: {decision.reason}{applied}"


def _facts_line(facts: Facts) -> str:
    late = "-" if facts.late_p99_ms is None else f"{facts.late_p99_ms:.0f} ms"
    return (
        f"{facts.elapsed_s:.0f} s | sent {facts.sent}, served {facts.served} | "
        f"{facts.usd_per_h:.2f} USD/h, {facts.usd:.2f} USD | late p99 {late}"
    )


def _three_digits(value: float, decimals: int) -> str:
    """A figure of at most six characters: no decimals from 100 on."""
    return f"{value:.0f}" if value >= 100.0 else f"{value:.{decimals}f}"


def _seconds(value_ms: float | None) -> str:
    if value_ms is None:
        return "-"
    return f"{value_ms / 1000:.0f}" if value_ms >= 10_000.0 else f"{value_ms / 1000:.1f}"


def _milliseconds(value_ms: float | None) -> str:
    return "-" if value_ms is None else f"{value_ms:.0f}"
