"""Makes text from outside safe for a terminal, a log line or a web page.

An escape sequence in a name or a reason could change what a terminal shows, a line feed could forge
a log line, and a bidirectional mark can reverse text. Ids with such characters are refused
(`topics.checks`); in free text they are replaced.
"""

from __future__ import annotations

_KEPT_IN_LINES = "\n\t"


def printable(text: str) -> str:
    """`text` as one line: white space becomes a space, and any other unprintable character becomes
    "?"."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else " " if sign.isspace() else "?" for sign in text)


def printable_lines(text: str) -> str:
    """`text` as lines: unprintable characters are replaced as in `printable`, except line feeds and
    tabs."""
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() or sign in _KEPT_IN_LINES else " " if sign.isspace() else "?"
        for sign in text
    )


def printable_json(text: str) -> str:
    """JSON with its unprintable characters escaped, so that its meaning is unchanged."""
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() or sign in _KEPT_IN_LINES else _escaped(sign) for sign in text
    )


def _escaped(sign: str) -> str:
    units = sign.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
