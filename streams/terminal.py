"""The one place where text goes to a terminal: nothing in it reaches the terminal as a command.

`guarded_output` covers whatever is printed, `streams.terminal_console` what is laid out by rich.
JSON keeps its meaning: see `show_json_bytes`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from typing import IO, Any

from topics.printable import printable_json, printable_lines


class PrintableStream:
    """A text stream that replaces what is not printable in what is written. raw: the stream below,
    for those whose control sequences are their own."""

    def __init__(self, raw: IO[str]) -> None:
        self.raw = raw

    def write(self, text: str) -> int:
        """As of the stream below; its length counts as written."""
        self.raw.write(printable_lines(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """One after the other."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


def raw_stream(stream: IO[str]) -> IO[str]:
    """The stream itself, where `stream` guards one."""
    return stream.raw if isinstance(stream, PrintableStream) else stream


@contextlib.contextmanager
def guarded_output() -> Iterator[None]:
    """While inside, standard output and standard error take printable text only."""
    before = sys.stdout, sys.stderr
    if not isinstance(sys.stdout, PrintableStream):
        sys.stdout, sys.stderr = PrintableStream(before[0]), PrintableStream(before[1])
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def show_json_bytes(data: bytes) -> None:
    """Write JSON to standard output."""
    text = data.decode()
    sys.stdout.buffer.write(data if text.isascii() else printable_json(text).encode())
