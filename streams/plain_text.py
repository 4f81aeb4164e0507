"""Words that depend on a number, and lines that must fit."""

from __future__ import annotations

import re

_FIGURE = re.compile(r"(?:[(~+-]*\d[\d.,/]*|of|to|at|)\Z")


def clipped(line: str, width: int) -> str:
    """`line` in `width` columns, its end left out between words, with no figure without what it is
    of: a figure in two halves is another figure."""
    if len(line) <= width:
        return line
    words = line[: width - 2].split(" ")[:-1]
    while len(words) > 1 and _FIGURE.match(words[-1]):
        words.pop()
    kept = " ".join(words).rstrip(" ,;:(")
    return (kept or line[: width - 3]) + "..."


def several(count: int, what: str) -> str:
    """ "1 model", "3 models"."""
    return f"{count} {what}{'' if count == 1 else 's'}"
