"""Texts with counts, and lines of limited width."""

from __future__ import annotations

import re

_FIGURE = re.compile(r"(?:[(~+-]*\d[\d.,/]*|of|to|at|)\Z")


def clipped(line: str, width: int) -> str:
    """`line` in at most `width` columns, cut between words. A number is never cut in half or
    separated from its unit."""
    if len(line) <= width:
        return line
    words = line[: width - 2].split(" ")[:-1]
    while len(words) > 1 and _FIGURE.match(words[-1]):
        words.pop()
    kept = " ".join(words).rstrip(" ,;:(")
    return (kept or line[: width - 3]) + "..."


def several(count: int, what: str) -> str:
    """A count with its noun: "1 model", "3 models"."""
    return f"{count} {what}{'' if count == 1 else 's'}"
