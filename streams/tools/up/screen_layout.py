"""The layout of the live view: the place of each item, and the order in which a small screen drops
items.

The result is lines of text of a given width and number: sections with headings, one fact a line. A
narrow screen loses columns, never figures. A low screen loses headings and blank lines, old events
and models without a problem.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from autoscaler.domain.cluster import Market
from streams.plain_text import several
from streams.tools.up.event_log import Event, clock
from streams.tools.up.placement_text import where_text
from streams.tools.up.quality_view import ServiceRow, service_parts
from streams.tools.up.run_state import ModelRow, Picture

_WIDE = 90
_LEAST_MODEL, _LEAST_WHERE = 8, 24
_LATE_MS = 50.0
_EVENTS_SHOWN = 8
_EVENT_LINES = 2
_STATE_LINES = 3
_LEAST_EVENT_LINES = 4
_LABEL = 12
_INDENT = 7
_BAD, _GOOD, _WARN, _QUIET = "bold red", "green", "yellow", "dim"

Cell = tuple[str, str]
"""A text and its style."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts of the run that are not in the picture. title: title of the run. state: its current
    activity.

    alerts: current faults. began_ms: domain time of the start. late_p99_ms: real ms.
    """

    title: tuple[str, ...]
    state: str
    alerts: tuple[str, ...]
    began_ms: int
    sent: int
    served: int
    failed: int
    usd: float
    late_p99_ms: float | None


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    left: bool = False
    optional: int = 0  # Lower numbers are shown first if there is room. 0: always.


_COLUMNS = (
    _Column("model", left=True),
    _Column("req/s", optional=1),
    _Column("capacity", optional=4),
    _Column("load"),
    _Column("where", left=True),
    _Column("TTFT p95", optional=2),
    _Column("TPOT p95", optional=3),
    _Column("SLO now"),
    _Column("USD/h"),
)
_MODEL, _WHERE = 0, 4


def screen(
    picture: Picture, now_ms: int, facts: Facts, width: int, height: int | None = None
) -> list[Text]:
    """The view as lines of at most `width` cells, and at most `height` lines if it is given."""
    made = _parts(picture, now_ms, facts, width)
    whole = _sections(made, picture.rows(now_ms), width, height)
    return whole or _compact(made, picture.rows(now_ms), width, height or 0)


@dataclass(frozen=True, slots=True)
class _Parts:
    """The lines of the view by content. run: figures of the run, one a line. flowed: the same
    figures next to each other."""

    title: list[Text]
    state: list[Text]
    clock: str
    run: list[Text]
    flowed: list[Text]
    alerts: list[Text]
    services: list[Text]
    unmet: list[Text]
    events: list[Text]


def _parts(picture: Picture, now_ms: int, facts: Facts, width: int) -> _Parts:
    return _Parts(
        title=[_cut(Text(line, style="bold cyan"), width) for line in facts.title],
        state=[_cut(Text(line, style="bold"), width) for line in _state_lines(facts.state, width)],
        clock=clock(now_ms - facts.began_ms),
        run=[_cut(line, width) for line in _run_lines(picture, facts)],
        flowed=flow(facts_parts(picture, now_ms, facts), width),
        alerts=[_cut(Text(line, style=_BAD), width) for line in facts.alerts],
        services=[line for row in picture.services(now_ms) for line in flow(_service(row), width)],
        unmet=[_cut(Text(line, style=_WARN), width) for line in unmet_lines(picture, now_ms)],
        events=story(list(picture.story)[-_EVENTS_SHOWN:], facts.began_ms, width),
    )


def _sections(made: _Parts, rows: Sequence[ModelRow], width: int, height: int | None) -> list[Text]:
    """The view in sections with headings, one fact a line; [] if the screen is too low for it."""
    lines = [*made.title, *made.state]
    for title, body in (
        (f"Run at {made.clock}", made.run),
        ("Models", table(rows, width)),
        ("Routes", made.services),
        ("Problems", [*made.alerts, *made.unmet]),
    ):
        lines += _section(title, body)
    if height is None:
        return [*lines, *_section("Events", made.events)]
    left = height - len(lines) - 2
    if left < min(_LEAST_EVENT_LINES, len(made.events)):
        return []
    return [*lines, *_section("Events", _last(made.events, left))]


def _section(title: str, body: Sequence[Text]) -> list[Text]:
    return [Text(""), Text(title, style="bold underline"), *body] if body else []


def _compact(made: _Parts, rows: Sequence[ModelRow], width: int, height: int) -> list[Text]:
    """The view of a low screen: no headings, figures next to each other, the worst models only."""
    head = [*made.state, *made.flowed]
    room = height - len(head) - 2
    shown = max(1, min(len(rows), room - 1 if len(rows) > room else room))
    lines = table(rows, width, shown)
    left = height - len(head) - len(lines)
    extra = [*made.alerts, *made.services, *made.unmet][: max(0, left)]
    alerts, rest = extra[: len(made.alerts)], extra[len(made.alerts) :]
    left -= len(extra)
    blanks = left >= 2 + 4
    left -= 2 * blanks
    title = made.title[: max(0, min(len(made.title), left - 4))]
    events = _last(made.events, left - len(title))
    blank = [Text("")] if blanks else []
    return [*title, *head, *alerts, *blank, *lines, *rest, *blank, *events][:height]


def _state_lines(state: str, width: int) -> list[str]:
    """The state of the run in at most three lines; an address is not broken."""
    return textwrap.wrap(
        state, width, max_lines=_STATE_LINES, placeholder="…",
        break_long_words=False, break_on_hyphens=False,
    ) or [""]  # fmt: skip


def facts_parts(picture: Picture, now_ms: int, facts: Facts) -> list[Cell]:
    """Texts about the clock, the requests and the cost."""
    usd_per_h = picture.usd_per_h()
    spot, rented = usd_per_h[Market.SPOT], usd_per_h[Market.ON_DEMAND]
    failed: list[Cell] = [(f"! {facts.failed} failed", _BAD)] if facts.failed else []
    late: list[Cell] = []
    if facts.late_p99_ms is not None and facts.late_p99_ms > _LATE_MS:
        late = [(f"! load sent late, p99 {facts.late_p99_ms:.0f} ms", _WARN)]
    return [
        (clock(now_ms - facts.began_ms), "bold"),
        (f"{facts.served} of {facts.sent} served", ""),
        *failed,
        (f"{spot + rented:.2f} USD/h ({rented:.2f} on-demand, {spot:.2f} spot)", ""),
        (f"{facts.usd:.2f} USD so far", ""),
        *late,
    ]


def _run_lines(picture: Picture, facts: Facts) -> list[Text]:
    """The requests and the cost of the run, one fact a line, with aligned labels."""
    usd_per_h = picture.usd_per_h()
    spot, rented = usd_per_h[Market.SPOT], usd_per_h[Market.ON_DEMAND]
    lines = [("requests", f"{facts.served} of {facts.sent} served", "")]
    if facts.failed:
        lines.append(("! failed", several(facts.failed, "request"), _BAD))
    if facts.late_p99_ms is not None and facts.late_p99_ms > _LATE_MS:
        lines.append(("! sent late", f"{facts.late_p99_ms:.0f} ms (p99)", _WARN))
    cost = f"{spot + rented:.2f} USD/h ({rented:.2f} on-demand, {spot:.2f} spot)"
    lines += [("cost", cost, ""), ("spent", f"{facts.usd:.2f} USD", "")]
    return [Text(f"  {name.ljust(_LABEL)}{text}", style=style) for name, text, style in lines]


def _service(row: ServiceRow) -> list[Cell]:
    """Texts about a service of several models, each as one part."""
    first, *rest = service_parts(row)
    return [(first, ""), *((part, _BAD if part.startswith("!") else "") for part in rest)]


def flow(parts: Sequence[Cell], width: int) -> list[Text]:
    """`parts` next to each other, in as few lines as possible. width: of a line, in cells."""
    lines = [Text()]
    for text, style in parts:
        if lines[-1] and lines[-1].cell_len + 3 + cell_len(text) > width:
            lines.append(Text())
        if lines[-1]:
            lines[-1].append(" | ", style=_QUIET)
        lines[-1].append(text, style=style)
    return [_cut(line, width) for line in lines]


def table(rows: Sequence[ModelRow], width: int, most: int | None = None) -> list[Text]:
    """A header and one line per model.

    If there are more than `most` models, the table has those that miss their SLO, then those with
    the highest load, and the number of omitted models.
    """
    shown = list(rows)
    if most is not None and len(shown) > most:
        worst = sorted(rows, key=lambda row: (not row.missed, -_load(row)))[:most]
        shown = [row for row in rows if row in worst]
    made = [cells(row) for row in shown]
    wide = [
        max([cell_len(column.title), *(cell_len(row[index][0]) for row in made)])
        for index, column in enumerate(_COLUMNS)
    ]
    gap = 2 if width >= _WIDE else 1
    kept = _kept(wide, width, gap)
    lines = [Text(style="bold"), *(Text() for _ in made)]
    for index in kept:
        column = _COLUMNS[index]
        texts: list[Cell] = [(column.title, ""), *(row[index] for row in made)]
        for line, (text, style) in zip(lines, texts, strict=True):
            if line:
                line.append(" " * gap)
            line.append(_fit(text, wide[index], column.left), style=style)
    if len(shown) < len(rows):
        lines.append(Text(f"and {len(rows) - len(shown)} more models", style=_QUIET))
    return [_cut(line, width) for line in lines]


def _kept(wide: list[int], width: int, gap: int) -> list[int]:
    """The columns that fit into `width`.

    Sets the widths of all columns in `wide`. The columns of names and places shrink last.
    """
    wide[_MODEL] = max(cell_len(_COLUMNS[_MODEL].title), wide[_MODEL])
    kept = [index for index, column in enumerate(_COLUMNS) if not column.optional]

    def least(columns: list[int]) -> int:
        limits = {_MODEL: _LEAST_MODEL, _WHERE: _LEAST_WHERE}
        fixed = sum(min(wide[i], limits.get(i, wide[i])) for i in columns)
        return fixed + gap * (len(columns) - 1)

    optional = sorted((i for i, c in enumerate(_COLUMNS) if c.optional), key=lambda i:
                      _COLUMNS[i].optional)  # fmt: skip
    for index in optional:
        if least([*kept, index]) > width:
            break
        kept = sorted([*kept, index])
    over = sum(wide[i] for i in kept) + gap * (len(kept) - 1) - width
    for index, floor in ((_WHERE, _LEAST_WHERE), (_MODEL, _LEAST_MODEL), (_WHERE, 8)):
        cut = max(0, min(over, wide[index] - floor))
        wide[index] -= cut
        over -= cut
    return kept


def cells(row: ModelRow) -> tuple[Cell, ...]:
    """One model's cells. A dash means no data, which is not zero; "!" marks a missed limit."""
    rate = "-" if row.req_per_s is None else _three_digits(row.req_per_s, 1)
    load = _load(row)
    met = "-" if row.attainment is None else f"{row.attainment:.1%}"
    where = where_text(row.where)
    return (
        (row.model, "bold" if row.missed else ""),
        (rate, ""),
        (_three_digits(row.capacity_req_per_s, 1), ""),
        (_load_text(load), _WARN if load > 1.0 else ""),
        (where, "" if row.where else _WARN),
        _limited(_seconds(row.ttft_p95_ms), row.ttft_p95_ms, row.ttft_limit_ms,
                 f"{_seconds(row.ttft_limit_ms)} s"),
        _limited(_milliseconds(row.tpot_p95_ms), row.tpot_p95_ms, row.tpot_limit_ms,
                 f"{_milliseconds(row.tpot_limit_ms)} ms"),
        (f"!{met}", _BAD) if row.missed else (met, "" if row.attainment is None else _GOOD),
        (_three_digits(row.usd_per_h, 2), ""),
    )  # fmt: skip


def _limited(text: str, value: float | None, limit: float, limit_text: str) -> Cell:
    missed = value is not None and value > limit
    return (f"{'!' if missed else ''}{text}/{limit_text}", _BAD if missed else "")


def unmet_lines(picture: Picture, now_ms: int) -> list[str]:
    """One line per model whose demand or SLO cannot be met, with the reason at the end."""
    return [f"! {model} falls short: {why}" for model, why in picture.unmet(now_ms).items()]


def story(events: Sequence[Event], began_ms: int, width: int) -> list[Text]:
    """Events in order, each in at most two lines; losses and failures are marked."""
    lines = []
    for event in events:
        wrapped = textwrap.wrap(
            event.line(began_ms),
            width,
            subsequent_indent=" " * _INDENT,
            max_lines=_EVENT_LINES,
            placeholder="…",
        )
        lines += [Text(line, style=_WARN if event.bad else "") for line in wrapped]
    return lines


def _last(lines: list[Text], room: int) -> list[Text]:
    """The last `room` lines, but starting with the first line of an event."""
    kept = lines[-room:] if room > 0 else []
    if len(kept) < len(lines) and kept and kept[0].plain.startswith(" "):
        kept = kept[1:]
    return kept


def _load(row: ModelRow) -> float:
    """Demand divided by capacity; -1 if the ratio is unknown."""
    if row.req_per_s is None or row.capacity_req_per_s <= 0.0:
        return -1.0
    return row.req_per_s / row.capacity_req_per_s


def _load_text(load: float) -> str:
    """`load` as text of at most five characters. It can be very large if almost no capacity is
    left.
    """
    if load < 0.0:
        return "-"
    return f"{load:.0%}" if load < 9.995 else ">999%"


def _fit(text: str, width: int, left: bool) -> str:
    if cell_len(text) > width:
        return set_cell_size(text, max(0, width - 1)) + "…"
    rest = " " * (width - cell_len(text))
    return text + rest if left else rest + text


def _cut(line: Text, width: int) -> Text:
    line.truncate(width, overflow="ellipsis")
    return line


def _three_digits(value: float, decimals: int) -> str:
    """A figure of at most six characters: no decimals from 100 on."""
    return f"{value:.0f}" if value >= 100.0 else f"{value:.{decimals}f}"


def _seconds(value_ms: float | None) -> str:
    if value_ms is None:
        return "-"
    return f"{value_ms / 1000:.0f}" if value_ms >= 10_000.0 else f"{value_ms / 1000:.1f}"


def _milliseconds(value_ms: float | None) -> str:
    return "-" if value_ms is None else f"{value_ms:.0f}"
