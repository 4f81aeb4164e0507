"""Terminal output of commands: tables, headings and labelled lines, 80 columns wide."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NoReturn

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from streams.terminal_console import SafeConsole

WIDTH = 80
LABEL = 12
"""Columns of a label and the space behind it."""

Line = str | Text


def console() -> Console:
    """Standard output, as wide as the terminal up to 80 columns; 80 without a terminal."""
    out = SafeConsole(highlight=False)
    width = min(WIDTH, out.width) if out.is_terminal else WIDTH
    return SafeConsole(width=width, highlight=False)


def show(tables: Iterable[Table], lines: Iterable[Line]) -> None:
    """Print the tables with an empty line between them, then the lines."""
    out = console()
    for number, one in enumerate(tables):
        if number:
            out.print()
        out.print(one)
    for line in lines:
        text = Text(line) if isinstance(line, str) else line
        out.print(text, soft_wrap=out.width >= WIDTH)  # A path may be longer than a line.


def watch(lines: Callable[[], Iterable[Line]], every_s: float) -> NoReturn:
    """Show `lines` in the whole terminal, updated every `every_s` seconds, until Ctrl-C. Without a
    terminal, print them one below the other."""
    out = console()
    with Live(console=out, screen=out.is_terminal, auto_refresh=False) as view:
        while True:
            shown = [Text(line) if isinstance(line, str) else line for line in lines()]
            if out.is_terminal:
                view.update(Group(*shown), refresh=True)
            else:
                show([], [*shown, ""])
            time.sleep(every_s)


def plain_table(*names: str, numbers: Iterable[str] = ()) -> Table:
    """An empty table; the columns in `numbers` are right-aligned."""
    right = set(numbers)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1))
    for name in names:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return table


def section(title: str, lines: Iterable[Line]) -> Iterator[Line]:
    """An empty line, the title and its lines; nothing if there are no lines."""
    body = list(lines)
    if body:
        yield ""
        yield Text(title, style="bold")
        yield from body


def labelled(label: str, items: Iterable[str]) -> Iterator[str]:
    """Items under each other with a label before the first. Long items are wrapped."""
    for number, item in enumerate(items):
        first = f"  {label}".ljust(LABEL + 2) if number == 0 else " " * (LABEL + 2)
        yield from textwrap.wrap(
            item, WIDTH, initial_indent=first, subsequent_indent=" " * (LABEL + 4),
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip


def wrapped(text: str, indent: str = "  ") -> Iterator[str]:
    """`text` as indented lines with a hanging indent."""
    yield from textwrap.wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def columns(rows: Iterable[tuple[str, ...]], numbers: int = 0) -> Iterator[str]:
    """Aligned rows. numbers: the last so many columns are right-aligned."""
    cells = list(rows)
    if not cells:
        return
    count = len(cells[0])
    widths = [max(len(row[i]) for row in cells) for i in range(count)]
    for row in cells:
        parts = [
            cell.rjust(width) if i >= count - numbers else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield ("  " + "  ".join(parts)).rstrip()
