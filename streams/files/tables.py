"""Read rows of tables: CSV, JSON Lines, JSON or Parquet, plain or gzipped.

A row maps column names in lower snake case (`column`) to values. Each row comes with its position
in the file, for messages. The caller interprets the columns.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import orjson

from streams.files.csv_rows import text_of
from streams.files.user_errors import UserError

Row = Mapping[str, object]
Numbered = tuple[str, Row]
"""The position of a row ("path:line"), and the row."""

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_OTHER = re.compile(r"[^a-z0-9.]+")
_DEEPEST = 6
OUTER = "row_of_group"
"""Column of group rows with the position of the outer row."""
BLOCK_HASHES = "hash_ids"
"""Column with a list: the hashes of a prompt's blocks. Other lists are left out."""
_PARQUET = b"PAR1"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of a table. place: position of the header, or of the first row. columns: the columns of
    the header; empty for JSON, because each row has its own keys. shown: the beginning of the
    table.
    """

    place: str
    columns: tuple[str, ...]
    rows: Iterator[Numbered]
    shown: str


def column(name: str) -> str:
    """Column name in lower snake case, without a `.value` suffix."""
    spaced = _CAMEL.sub("_", name.strip()) if not name.isupper() else name.strip()
    found = _OTHER.sub("_", spaced.lower()).strip("_.")
    return found.removesuffix(".value")


def read_table(path: Path, expected: str, groups: Sequence[str] = ()) -> Table:
    """The table in `path`. groups: keys whose value is a list of inner rows. UserError: the file is
    not a table. A line is checked when its row is read.
    """
    if is_parquet(path):
        return of_rows(_parquet(path, groups), "")
    return table_of(path, read_text(path, expected), expected, groups)


def table_of(path: Path | str, text: str, expected: str, groups: Sequence[str] = ()) -> Table:
    """The table in `text`. path: name of the source in messages. groups: as in `read_table`."""
    first = text.lstrip().split("\n", 1)[0].strip()
    if not first:
        raise UserError(f"{path}: empty; expected {expected}")
    if first[0] in "{[":
        return of_rows(_json(path, text, groups), first)
    return _csv(path, text, expected)


def of_rows(rows: Iterator[Numbered], shown: str) -> Table:
    first = next(rows, None)
    if first is None:
        return Table("", (), iter(()), shown)
    return Table(first[0], (), chain([first], rows), shown or ", ".join(first[1]))


def read_lines(path: Path, expected: str) -> list[str]:
    """The lines of a text file. Errors as in `read_text`."""
    return read_text(path, expected).splitlines()


def read_text(path: Path, expected: str) -> str:
    """Text of a file, gzipped or not. UserError names the expected content if it is not text."""
    try:
        return text_of(path)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: a damaged gzip file ({error})") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}; expected {expected}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not text; expected {expected}") from None


# -- CSV ----------------------------------------------------------------------------------------


def _csv(path: Path | str, text: str, expected: str) -> Table:
    first = text.lstrip().split("\n", 1)[0].strip()
    cut = max(",\t;|", key=first.count)
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=cut, skipinitialspace=True)
    cells = _cells(path, lines)
    place, header = next(cells, ("", []))
    if not header:
        raise UserError(f"{path}: holds no column; expected {expected}")
    names = tuple(column(cell) for cell in header)
    return Table(place, names, _csv_rows(names, cut, cells), first)


def _csv_rows(
    names: Sequence[str], cut: str, lines: Iterator[tuple[str, list[str]]]
) -> Iterator[Numbered]:
    for place, cells in lines:
        if len(cells) != len(names):
            shown = cut.join(names)[:120]
            raise UserError(f"{place}: {len(cells)} columns, expected {len(names)}: {shown}")
        yield place, dict(zip(names, cells, strict=True))


def _cells(path: Path | str, reader: Any) -> Iterator[tuple[str, list[str]]]:
    """The cells of every line that is not blank, with the position of the line."""
    try:
        for cells in reader:
            cells = [cell.strip() for cell in cells]
            if any(cells):
                yield f"{path}:{reader.line_num}", cells
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num}: not CSV ({error})") from None


# -- JSON ---------------------------------------------------------------------------------------


def _json(path: Path | str, text: str, groups: Sequence[str]) -> Iterator[Numbered]:
    """Rows of JSON Lines, or of one document that spans several lines."""
    try:
        whole = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        first = text.lstrip().split("\n", 1)[0].strip()
        if first in ("{", "["):
            raise UserError(f"{path}: not JSON ({error})") from None
        return _json_lines(path, text, groups)
    return _document(path, whole, groups)


def _json_lines(path: Path | str, text: str, groups: Sequence[str]) -> Iterator[Numbered]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise UserError(f"{place}: not JSON ({error})") from None
        yield from _of_object(place, value, groups)


def _document(path: Path | str, whole: Any, groups: Sequence[str]) -> Iterator[Numbered]:
    """Rows of a whole document.

    It is a list of rows, an object with such a list, or an object of columns (lists of equal
    length).
    """
    if isinstance(whole, dict):
        lists = {
            key: value
            for key, value in whole.items()
            if isinstance(value, list) and key != BLOCK_HASHES
        }
        plain = {k: v for k, v in lists.items() if v and not isinstance(v[0], (dict, list))}
        if len({len(value) for value in plain.values()}) == 1 and len(plain) > 2:
            for number, cells in enumerate(zip(*plain.values(), strict=True), 1):
                row = {column(key): one for key, one in zip(plain, cells, strict=True)}
                yield f"{path}: row {number}", row
            return
        if not any(key in lists for key in groups) and len(lists) == 1:
            whole = next(iter(lists.values()))
    for number, one in enumerate(whole if isinstance(whole, list) else [whole], 1):
        place = f"{path}: row {number}" if isinstance(whole, list) else f"{path}:1"
        yield from _of_object(place, one, groups)


def _of_object(place: str, value: Any, groups: Sequence[str]) -> Iterator[Numbered]:
    if not isinstance(value, dict):
        raise UserError(f"{place}: expected an object")
    yield from _flat(place, value, {}, groups, 0)


def _flat(
    place: str, value: Mapping[str, Any], outer: Row, groups: Sequence[str], depth: int
) -> Iterator[Numbered]:
    """Rows of `value`: `value` itself, or the rows of the groups inside it."""
    row = dict(outer)
    _take(row, value, "", depth)
    inside = next((key for key in groups if isinstance(value.get(key), list)), None)
    if inside is None or depth >= _DEEPEST:
        yield place, row
        return
    row.setdefault(OUTER, place)
    for one in value[inside]:
        if not isinstance(one, dict):
            raise UserError(f"{place}: {inside}: expected a list of objects")
        yield from _flat(place, one, row, groups, depth + 1)


def _take(row: dict[str, object], value: Mapping[str, Any], prefix: str, depth: int) -> None:
    """Add the keys of `value` to `row`. Keys of inner objects are joined with dots."""
    for key, inner in value.items():
        name = f"{prefix}{key}"
        if isinstance(inner, dict):
            if depth < _DEEPEST:
                _take(row, inner, f"{name}.", depth + 1)
        elif inner is not None and (not isinstance(inner, list) or key == BLOCK_HASHES):
            row[column(name)] = inner


# -- Parquet ------------------------------------------------------------------------------------


def is_parquet(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) == _PARQUET
    except OSError:
        return False  # `read_text` reports the reason.


def _parquet(path: Path, groups: Sequence[str]) -> Iterator[Numbered]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError(
            f"{path}: a Parquet file, which needs pyarrow: make parquet (without a clone: pip "
            "install 'shoal[parquet]')"
        ) from None
    try:
        file = pyarrow.parquet.ParquetFile(path)
        batches = chain.from_iterable(batch.to_pylist() for batch in file.iter_batches())
        for number, row in enumerate(batches, 1):
            yield from _of_object(f"{path}: row {number}", row, groups)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        reason = str(error).split("\n", 1)[0]
        raise UserError(f"{path}: not a Parquet file that can be read ({reason})") from None
