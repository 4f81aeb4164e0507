"""Text from outside, made safe to show: to a terminal, in a log line, in a page.

An escape sequence in a name or a reason could rewrite what a terminal shows, a line feed could make
up a log line, and a bidirectional mark turns text around. Ids with such characters are refused
(`topics.checks`); free text keeps its words and loses them here.
"""

from __future__ import annotations

_KEPT_IN_LINES = "\n\t"


def printable(text: str) -> str:
    """`text` as one line: white space becomes spaces, and "?" what else is not printable."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else " " if sign.isspace() else "?" for sign in text)


def printable_lines(text: str) -> str:
    """The same, for text of several lines: line feeds and tabs stay."""
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() or sign in _KEPT_IN_LINES else " " if sign.isspace() else "?"
        for sign in text
    )


def printable_json(text: str) -> str:
    """JSON with every character that is not printable as its escape, so that it still means the
    same."""
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() or sign in _KEPT_IN_LINES else _escaped(sign) for sign in text
    )


def _escaped(sign: str) -> str:
    units = sign.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
