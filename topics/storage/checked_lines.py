"""Lines of a file with a checksum each, so that a damaged line is not taken for a record.

A line is the CRC-32 of its text as eight hexadecimal digits, a space, and the text.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

_HEAD = 9
MAX_LINE_BYTES = 64 << 20


def checked_line(text: bytes) -> bytes:
    """`text`, which has no line break, as a line."""
    return b"%08x %b\n" % (zlib.crc32(text), text)


def text_of(line: bytes) -> bytes | None:
    """The text of `line`; None if the line is damaged."""
    text = line[_HEAD:]
    return text if line[:_HEAD] == b"%08x " % zlib.crc32(text) else None


def read_lines(path: Path, most_bytes: int = MAX_LINE_BYTES) -> Iterator[bytes | None]:
    """The texts of the lines of `path`, None for each damaged line. Lines longer than `most_bytes`
    count as several damaged ones. Raises OSError."""
    with path.open("rb") as file:
        while line := file.readline(most_bytes):
            if text := line.removesuffix(b"\n"):
                yield text_of(text)
