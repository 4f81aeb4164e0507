"""Consoles of rich whose texts are printable; styles and cursor movements stay possible."""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from streams.terminal import raw_stream
from topics.printable import printable_lines


class SafeConsole(Console):
    """Console whose texts contain no control characters.

    It writes to standard output, or to standard error with `stderr=True`.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Segments of `renderable` with printable text."""
        for segment in super().render(renderable, options):
            if segment.control is None and not segment.text.isprintable():
                segment = Segment(printable_lines(segment.text), segment.style)
            yield segment

    @property
    def file(self) -> IO[str]:
        """The underlying stream, without the replacement of characters by `PrintableStream`."""
        return raw_stream(super().file)

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file
