"""Picture of fleets over time: rented GPUs by type as stacked areas, and demand as a line above."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from streams.html_text import escaped
from streams.tools.backtest.svg_charts import colour

_WIDTH, _PANEL, _GAP = 860, 240, 34
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 190, 26, 44
_DEMAND = "#222222"
_STEPS = 5

Floats = npt.NDArray[np.float64]


def fleet_chart(policies: Sequence[Mapping[str, Any]]) -> str:
    """One panel per policy of a backtest's report, with equal axes; "" without a course.

    The left axis counts GPUs, the right axis requests/s.
    """
    shown = [policy for policy in policies if policy.get("course")]
    if not shown:
        return ""
    types = sorted({name for one in shown for point in one["course"] for name in point["gpus"]})
    most_gpus = max(sum(point["gpus"].values()) for one in shown for point in one["course"])
    most_demand = max(point["req_per_s"] for one in shown for point in one["course"])
    height = _TOP + len(shown) * (_PANEL + _GAP) + _BOTTOM - _GAP
    parts = [f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="GPUs by type">']
    for index, policy in enumerate(shown):
        top = _TOP + index * (_PANEL + _GAP)
        parts += _panel(policy, types, top, (max(1.0, most_gpus), max(1e-9, most_demand)))
    parts += _hours(shown[0]["course"], height)
    for row, (name, fill) in enumerate(
        [("requests/s", _DEMAND), *((name, colour(i)) for i, name in enumerate(types))]
    ):
        y = _TOP + 20 * row
        parts.append(
            f'<rect x="{_WIDTH - _RIGHT + 56}" y="{y}" width="12" height="12" fill="{fill}"/>'
            f'<text x="{_WIDTH - _RIGHT + 74}" y="{y + 11}">{escaped(name)}</text>'
        )
    return "\n".join([*parts, "</svg>"])


def _panel(
    policy: Mapping[str, Any], types: Sequence[str], top: float, most: tuple[float, float]
) -> list[str]:
    course = policy["course"]
    most_gpus, most_demand = most
    bottom = top + _PANEL
    xs = _x(np.array([point["at_s"] for point in course]))
    parts = []
    below = np.zeros(len(course))
    for index, name in enumerate(types):
        above = below + np.array([point["gpus"].get(name, 0.0) for point in course])
        low, high = (bottom - _PANEL * edge / most_gpus for edge in (below, above))
        outline = [*zip(xs, high, strict=True), *zip(xs[::-1], low[::-1], strict=True)]
        parts.append(f'<polygon points="{_points(outline)}" fill="{colour(index)}"/>')
        below = above
    demand = np.array([point["req_per_s"] for point in course])
    line = zip(xs, bottom - _PANEL * demand / most_demand, strict=True)
    parts.append(
        f'<polyline points="{_points(line)}" fill="none" stroke="{_DEMAND}" stroke-width="1.6"/>'
    )
    for step in range(_STEPS + 1):
        y = bottom - _PANEL * step / _STEPS
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:g}" y2="{y:g}" stroke="#ccc" '
            f'stroke-width="0.5"/><text x="{_LEFT - 6}" y="{y + 4:g}" text-anchor="end">'
            f"{most_gpus * step / _STEPS:.0f}</text>"
            f'<text x="{_WIDTH - _RIGHT + 6}" y="{y + 4:g}">{most_demand * step / _STEPS:.0f}'
            "</text>"
        )
    said = (
        f"{policy['name']}: {policy['cost_usd']:.0f} USD, {100 * policy['slo_attainment']:.1f}% of "
        "requests within their SLO"
    )
    parts.append(f'<text x="{_LEFT}" y="{top - 8}" font-weight="bold">{escaped(said)}</text>')
    return parts


def _hours(course: Sequence[Mapping[str, Any]], height: float) -> list[str]:
    """The labels of the time axis."""
    at_s = np.array([point["at_s"] for point in course])
    last = len(at_s) - 1
    places = sorted({round(last * step / _STEPS) for step in range(_STEPS + 1)})
    labels = [
        f'<text x="{x:.1f}" y="{height - 24}" text-anchor="middle">{hours:.1f}</text>'
        for x, hours in zip(_x(at_s)[places], at_s[places] / 3600.0, strict=True)
    ]
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    return [
        *labels,
        f'<text x="{middle:g}" y="{height - 6}" text-anchor="middle">hours; left: GPUs, right: '
        "requests/s</text>",
    ]


def _x(at_s: Floats) -> Floats:
    whole = max(1.0, float(at_s[-1]))
    found: Floats = _LEFT + (_WIDTH - _RIGHT - _LEFT) * at_s / whole
    return found


def _points(pairs: Any) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in pairs)
