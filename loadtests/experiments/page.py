"""Markdown tables and SVG files of the results pages."""

from __future__ import annotations

from collections.abc import Sequence

_STYLE = (
    "<style>text{font:11px sans-serif;fill:#1d2733}.grid{stroke:#e6ebf0}</style>"
    '<rect width="100%" height="100%" fill="#fff"/>'
)


def rows_of(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return ["| " + " | ".join(cells) + " |" for cells in lines]


def standalone(svg: str) -> str:
    """Return the chart `svg` as the text of an SVG file."""
    head = '<svg xmlns="http://www.w3.org/2000/svg" '
    return svg.replace("<svg ", head, 1).replace(">", ">" + _STYLE, 1) + "\n"
