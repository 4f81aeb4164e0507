"""Terminal output of commands: tables and lines, at most 100 columns wide."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from streams.terminal_console import SafeConsole

WIDTH = 100


def console() -> Console:
    """Standard output, as wide as the terminal up to 100 columns; 100 without a terminal."""
    made = SafeConsole(highlight=False)
    width = min(WIDTH, made.width) if made.is_terminal else WIDTH
    return SafeConsole(width=width, highlight=False)


def show(tables: Iterable[Table], lines: Iterable[str]) -> None:
    """Print the tables with an empty line between them, then the lines."""
    out = console()
    for number, one in enumerate(tables):
        if number:
            out.print()
        out.print(one)
    for line in lines:
        out.print(Text(line))


def plain_table(*names: str, numbers: Iterable[str] = ()) -> Table:
    """An empty table; the columns in `numbers` are right-aligned."""
    right = set(numbers)
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1))
    for name in names:
        made.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return made
