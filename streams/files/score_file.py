"""Numbers of a score file."""

from __future__ import annotations

from pathlib import Path

from streams.files.csv_rows import Row, finite_cell, numbered_rows
from streams.files.user_errors import UserError


def sampled_scores(file: Path) -> tuple[float, ...]:
    """Column `score` of the score file `file`, for the replay of requests."""
    return tuple(number(file, line, row, "score") for line, row in numbered_rows(file))


def number(file: Path, line: int, row: Row, column: str) -> float:
    """The value in `column` of `row`. Raises UserError with the line of `file`."""
    value = finite_cell(row.get(column))
    if value is None:
        raise UserError(f"{file}:{line}: {column}: {row.get(column)!r} is not a finite number")
    return value
