"""Escape text for HTML pages."""

from __future__ import annotations

from html import escape

from topics.printable import printable


def escaped(text: str) -> str:
    """`text` as literal HTML text, without tags, control characters, or marks that change the text
    direction."""
    return escape(printable(text))
