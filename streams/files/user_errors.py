"""What a user gets to read when something they gave us cannot be used: one line, exit code 2."""

from __future__ import annotations

import re

from topics.printable import printable

_LOGIN = re.compile(r"(?<=://)(?:[^/?#\s]*@|[^/?#:\[\s]*:(?!\d*(?:[/?#\s]|$))\S*@)")
"""A password may hold characters that end a host: what is no port behind a colon is one, up to the
last @."""


class UserError(Exception):
    """Bad input. Its text is one line that names the place, the value and what is allowed; what is
    not printable in it is replaced, as file names and values may be anybody's."""

    def __init__(self, message: str = "", *more: object) -> None:
        super().__init__(printable(str(message)), *more)


def without_login(text: str) -> str:
    """`text` as it may be printed: its URLs without the user and password before the host."""
    return _LOGIN.sub("", text)


def first_line(error: BaseException) -> str:
    """The first line of an error's text, for messages of libraries that write paragraphs."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
