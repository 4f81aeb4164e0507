"""Errors for invalid user input: one line, exit code 2."""

from __future__ import annotations

import re

from topics.printable import printable

_LOGIN = re.compile(r"(?<=://)(?:[^/?#\s]*@|[^/?#:\[\s]*:(?!\d*(?:[/?#\s]|$))\S*@)")
"""A password may hold characters that end a host: what is no port behind a colon is one, up to the
last @."""


class UserError(Exception):
    """Invalid input. Its text is one line that names the place, the value and the allowed values.
    Unprintable characters are replaced, because file names and values may be untrusted."""

    def __init__(self, message: str = "", *more: object) -> None:
        super().__init__(printable(str(message)), *more)


def without_login(text: str) -> str:
    """`text` for display: URLs without the user and password before the host."""
    return _LOGIN.sub("", text)


def first_line(error: BaseException) -> str:
    """First line of an error's text, for libraries whose messages have several."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
