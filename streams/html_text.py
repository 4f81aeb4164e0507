"""The one place where text goes into a page."""

from __future__ import annotations

from html import escape

from topics.printable import printable


def escaped(text: str) -> str:
    """`text` as HTML shows it, and nothing else: no tags, no control characters, no marks that turn
    the direction of what follows."""
    return escape(printable(text))
