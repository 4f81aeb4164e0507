"""Texts with counts, and lines of limited width."""

from __future__ import annotations

import re

_THOUSAND = 999.5
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


def age_words(seconds: float) -> str:
    """A duration, e.g. "9 s", "4 min", "3 h", "5 d"."""
    for limit, unit_s, unit in ((120.0, 1.0, "s"), (7200.0, 60.0, "min"), (172_800.0, 3600.0, "h")):
        if seconds < limit:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds / 86_400.0:.0f} d"


def quantity(value: float) -> str:
    """A number with three significant digits, without an exponent: "3.14", "0.025", "2,000"."""
    if abs(value) >= _THOUSAND:
        return f"{value:,.0f}"
    return f"{value:.3g}"
