"""Write text to a terminal so that no part of the text acts as a terminal command.

`guarded_output` handles printed text, and `streams.terminal_console` handles text that rich lays
out. `show_json_bytes` keeps JSON valid.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from typing import IO, Any

from topics.printable import printable_json, printable_lines


class PrintableStream:
    """Text stream that replaces unprintable characters. raw: the underlying stream, for callers
    that write their own control sequences."""

    def __init__(self, raw: IO[str]) -> None:
        self.raw = raw

    def write(self, text: str) -> int:
        """Write `text` to the underlying stream; returns the length of `text`."""
        self.raw.write(printable_lines(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write the lines in order."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


def raw_stream(stream: IO[str]) -> IO[str]:
    """The underlying stream of a `PrintableStream`, else `stream` itself."""
    return stream.raw if isinstance(stream, PrintableStream) else stream


@contextlib.contextmanager
def guarded_output() -> Iterator[None]:
    """Context in which standard output and standard error replace unprintable characters."""
    before = sys.stdout, sys.stderr
    if not isinstance(sys.stdout, PrintableStream):
        sys.stdout, sys.stderr = PrintableStream(before[0]), PrintableStream(before[1])
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def show_json_bytes(data: bytes) -> None:
    """Write JSON to standard output, with unprintable characters escaped."""
    text = data.decode()
    sys.stdout.buffer.write(data if text.isascii() else printable_json(text).encode())
