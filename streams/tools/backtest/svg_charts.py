"""Line charts as SVG text: axes with round numbers, lines, points, a legend.

The text is self-contained: no script, no font, no network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from streams.html_text import escaped

WIDTH, HEIGHT = 860, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 210, 16, 46
_COLOURS = (
    "#1b6ac9", "#d1495b", "#2a9d5c", "#e08e1b", "#7b4fb5", "#0f8b8d", "#8c5a2b", "#c2388f",
    "#5b6c7d", "#7a9a01", "#444444", "#a05195", "#2f4b7c", "#b5651d",
)  # fmt: skip

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart. points: in order of x. mark: an emphasised point. steps: draw the line
    as steps.

    spans: thin straight lines between two points each, which show the spread over runs.
    """

    name: str
    points: tuple[Point, ...]
    mark: Point | None = None
    steps: bool = False
    fill: bool = False
    spans: tuple[tuple[Point, Point], ...] = ()


def colour(index: int) -> str:
    """The colour of series number `index`."""
    return _COLOURS[index % len(_COLOURS)]


def line_chart(
    series: Sequence[Series], x_label: str, y_label: str, y_range: tuple[float, float] | None = None
) -> str:
    """One chart as SVG. y_range: the range of the y axis; None: from 0 to the highest value."""
    every = [
        p
        for one in series
        for p in (
            *one.points,
            *((one.mark,) if one.mark else ()),
            *(end for span in one.spans for end in span),
        )
    ]
    if not every:
        return ""
    low_x, high_x = min(p[0] for p in every), max(p[0] for p in every)
    if high_x <= low_x:
        low_x, high_x = low_x - 0.5, high_x + 0.5
    low_y, high_y = y_range or (0.0, max(p[1] for p in every) * 1.05 or 1.0)

    def at(point: Point) -> tuple[str, str]:
        x = _LEFT + (point[0] - low_x) / (high_x - low_x) * (WIDTH - _LEFT - _RIGHT)
        y = _TOP + (high_y - point[1]) / (high_y - low_y) * (HEIGHT - _TOP - _BOTTOM)
        return f"{x:.1f}", f"{y:.1f}"

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escaped(y_label)}">']
    for value in ticks(low_y, high_y):
        _, y = at((low_x, value))
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{y}" dy="4" text-anchor="end">'
                     f"{value:g}</text>")  # fmt: skip
    for value in ticks(low_x, high_x):
        x, _ = at((value, low_y))
        parts.append(f'<text class="tick" x="{x}" y="{HEIGHT - _BOTTOM + 16}" '
                     f'text-anchor="middle">{value:g}</text>')  # fmt: skip
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    parts.append(f'<text class="label" x="{middle:.0f}" y="{HEIGHT - 8}" text-anchor="middle">'
                 f"{escaped(x_label)}</text>")  # fmt: skip
    across = (_TOP + HEIGHT - _BOTTOM) / 2
    parts.append(f'<text class="label" transform="translate(14 {across:.0f}) rotate(-90)" '
                 f'text-anchor="middle">{escaped(y_label)}</text>')  # fmt: skip
    for index, one in enumerate(series):
        parts += ['<g class="series">', *_drawn(one, colour(index), at, low_y)]
        down, right = _TOP + 10 + 18 * index, WIDTH - _RIGHT + 16
        parts.append(f'<rect x="{right}" y="{down - 8}" width="12" height="8" '
                     f'fill="{colour(index)}"/></g>')  # fmt: skip
        parts.append(f'<text class="legend" x="{right + 18}" y="{down}">{escaped(one.name)}</text>')
    parts.append("</svg>")
    return "".join(parts)


def _drawn(
    one: Series, stroke: str, at: Callable[[Point], tuple[str, str]], low_y: float
) -> list[str]:
    points = list(one.points)
    if one.steps:
        points = [
            p
            for (x, y), after in zip(points, [*points[1:], None], strict=True)
            for p in ([(x, y), (after[0], y)] if after else [(x, y)])
        ]
    parts = []
    path = " ".join(",".join(at(point)) for point in points)
    if one.fill and points:
        first, last = at((points[0][0], low_y)), at((points[-1][0], low_y))
        around = f"{','.join(first)} {path} {','.join(last)}"
        parts.append(f'<polygon points="{around}" fill="{stroke}" opacity="0.15"/>')
    if len(points) > 1:
        parts.append(f'<polyline points="{path}" fill="none" stroke="{stroke}" stroke-width="2"/>')
    for begin, end in one.spans:
        (x1, y1), (x2, y2) = at(begin), at(end)
        parts.append(f'<line class="span" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" '
                     f'stroke="{stroke}" opacity="0.5"/>')  # fmt: skip
    if not one.steps:
        for point in points:
            x, y = at(point)
            parts.append(f'<circle cx="{x}" cy="{y}" r="2.5" fill="{stroke}"/>')
    if one.mark:
        x, y = at(one.mark)
        title = f"{escaped(one.name)}: {one.mark[0]:.4g}, {one.mark[1]:.4g}"
        parts.append(f'<circle cx="{x}" cy="{y}" r="6" class="ring" fill="{stroke}" stroke="#fff" '
                     f'stroke-width="1.5"><title>{title}</title></circle>')  # fmt: skip
    return parts


def ticks(low: float, high: float) -> list[float]:
    """Round numbers in [low, high]: multiples of 1, 2 or 5 times a power of ten."""
    raw = (high - low) / 6.0
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1.0, 2.0, 5.0, 10.0) if m * power >= raw * (1.0 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(k * step, 10) for k in range(first, last + 1)]
