"""Errors for invalid user input: one line, exit code 2."""

from __future__ import annotations

import re

from topics.printable import printable

_LOGIN = re.compile(r"(?<=://)(?:[^/?#\s]*@|[^/?#:\[\s]*:(?!\d*(?:[/?#\s]|$))\S*@)")
"""Login in a URL.

A password may contain characters that end a host. So text after a colon that is no port counts as a
password, up to the last @.
"""


class UserError(Exception):
    """Invalid input. The message is one line that names the position, the value and the allowed
    values. Unprintable characters are replaced, because file names and values may be untrusted."""

    def __init__(self, message: str = "", *more: object) -> None:
        super().__init__(printable(str(message)), *more)


def without_login(text: str) -> str:
    """`text` for display, without users and passwords in URLs."""
    return _LOGIN.sub("", text)


def first_line(error: BaseException) -> str:
    """First line of an error's text, because some libraries raise messages of several lines."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


class NoRequests(UserError):
    """A trace is readable, but has no request in the chosen span."""
