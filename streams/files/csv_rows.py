"""Read CSV files of measurements (plain or .gz): rows of text, and cells as checked numbers.

Errors name file, line, column and value. The caller interprets the columns.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from autoscaler.domain.validation import InvalidValue
from streams.files.user_errors import UserError

Row = Mapping[str, str]


def read_rows(path: Path) -> Sequence[Row]:
    """Every non-blank row of `path`. UserError if there is no row or the file is not CSV."""
    return [row for _, row in numbered_rows(path)]


def numbered_rows(path: Path) -> Sequence[tuple[int, Row]]:
    """Every non-blank row of `path`, with the line of the file on which the row ends. UserError as
    in `read_rows`."""
    try:
        text = text_of(path)
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read ({cause_of(error)})") from None
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        rows = [(reader.line_num, row) for row in reader if any(row.values())]
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num}: not CSV ({error})") from None
    if not reader.fieldnames:
        raise UserError(f"{path}: the file is empty")
    if not rows:
        raise UserError(f"{path}: the file has a header but no rows")
    for line, row in rows:
        if None in row or None in row.values():
            raise UserError(f"{path}:{line}: not {len(reader.fieldnames)} cells as the header")
    return rows


def text_of(path: Path, errors: str = "strict") -> str:
    """Text of a file, gzipped or not. Raises OSError, EOFError, zlib.error, UnicodeDecodeError."""
    raw = path.read_bytes()
    return (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8-sig", errors)


def cause_of(error: Exception) -> str:
    """Short reason why a file could not be read or written."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else "broken gzip"


def finite_cell(text: str | None, least: float = -math.inf, most: float = math.inf) -> float | None:
    """A cell as a finite number from `least` to `most`; None if the cell is missing or contains no
    such number.
    """
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and least <= value <= most else None


def number(row: Row, column: str) -> float:
    """The cell as a finite number above 0, else InvalidValue naming the column."""
    text = row[column]
    value = finite_cell(text, 0.0)
    if not value:
        raise InvalidValue(column, text, "a finite number above 0")
    return value


def whole_number(row: Row, column: str) -> int:
    """The cell as a whole number from 1 to 1024, else InvalidValue naming the column."""
    value = number(row, column)
    if value != int(value) or value > 1024:
        raise InvalidValue(column, row[column], "a whole number from 1 to 1024")
    return int(value)


def count(row: Row, column: str) -> int:
    """An optional count. An absent or empty cell and 0 mean 1."""
    text = row.get(column) or "1"
    return 1 if text in ("0", "0.0") else whole_number({column: text}, column)
