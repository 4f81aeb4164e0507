"""Writer of an experiment's table and chart into its part of docs/results/experiments.md.

`put` replaces the text between `<!-- NAME -->` and `<!-- /NAME -->` and keeps all other text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from autoscaler.domain.validation import InvalidValue
from streams.html_text import escaped
from streams.tools.backtest.svg_charts import HEIGHT, WIDTH, colour, ticks

_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 170, 16, 40
_STYLE = (
    "<style>text{font:11px sans-serif;fill:#1d2733}.grid{stroke:#e6ebf0}</style>"
    '<rect width="100%" height="100%" fill="#fff"/>'
)


def rows_of(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return ["| " + " | ".join(cells) + " |" for cells in lines]


def bar_chart(groups: Sequence[str], series: Mapping[str, Sequence[float]], y_label: str) -> str:
    """Draw grouped bars: one group for each name, with one bar for each series; NaN draws none."""
    most = max((v for values in series.values() for v in values if v == v), default=1.0) * 1.05
    wide, high = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escaped(y_label)}">']
    for value in ticks(0.0, most):
        y = _TOP + high * (1.0 - value / most)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_LEFT + wide}" y1="{y:.1f}" '
                     f'y2="{y:.1f}"/><text x="{_LEFT - 6}" y="{y:.1f}" dy="4" '
                     f'text-anchor="end">{value:g}</text>')  # fmt: skip
    each = wide / len(groups)
    bar = 0.8 * each / len(series)
    for g, name in enumerate(groups):
        parts.append(f'<text x="{_LEFT + (g + 0.5) * each:.1f}" y="{HEIGHT - _BOTTOM + 16}" '
                     f'text-anchor="middle">{escaped(name)}</text>')  # fmt: skip
        for s, values in enumerate(series.values()):
            if values[g] == values[g]:
                tall = high * values[g] / most
                parts.append(f'<rect x="{_LEFT + (g + 0.1) * each + s * bar:.1f}" '
                             f'y="{_TOP + high - tall:.1f}" width="{0.92 * bar:.1f}" '
                             f'height="{tall:.1f}" fill="{colour(s)}"/>')  # fmt: skip
    for s, name in enumerate(series):
        down, right = _TOP + 10 + 18 * s, WIDTH - _RIGHT + 16
        parts.append(f'<rect x="{right}" y="{down - 8}" width="12" height="8" fill="{colour(s)}"/>'
                     f'<text x="{right + 18}" y="{down}">{escaped(name)}</text>')  # fmt: skip
    parts.append(f'<text transform="translate(14 {_TOP + high / 2:.0f}) rotate(-90)" '
                 f'text-anchor="middle">{escaped(y_label)}</text></svg>')  # fmt: skip
    return "".join(parts)


def standalone(svg: str) -> str:
    """Return the chart `svg` as the text of an SVG file."""
    head = '<svg xmlns="http://www.w3.org/2000/svg" '
    return svg.replace("<svg ", head, 1).replace(">", ">" + _STYLE, 1) + "\n"


def put(page: Path, name: str, lines: Sequence[str], svg: str = "") -> None:
    """Replace the part called `name` of `page`; the chart goes into a folder next to the page.

    Raises InvalidValue if the page has no such part.
    """
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    if begin not in text or end not in text:
        raise InvalidValue("--page", str(page), f"a page with the lines {begin} and {end}")
    body = [*lines]
    if svg:
        folder = page.with_suffix("")
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.svg").write_text(standalone(svg), encoding="utf-8")
        body += ["", f"![{name}]({folder.name}/{name}.svg)"]
    before, rest = text.split(begin, 1)
    after = rest.split(end, 1)[1]
    page.write_text(before + "\n".join([begin, *body, end]) + after, encoding="utf-8")
