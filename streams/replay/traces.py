"""Recorded request traces: Azure CSV, Mooncake JSONL, AIBrix CSV, plain or gzipped.

Owns reading the three forms, told apart by their first line, and saying which file and line does
not fit. Knows nothing of models, clocks or sending.
"""

from __future__ import annotations

import gzip
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import orjson

from streams.files.errors import UserError

_AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
_AIBRIX = "timestamp_ms,input_tokens,output_tokens"
_MOONCAKE = ("timestamp", "input_length", "output_length")
_FORMS = (
    f"an Azure CSV ({_AZURE}), a Mooncake JSONL ({', '.join(_MOONCAKE)}) "
    f"or an AIBrix CSV ({_AIBRIX}), plain or .gz"
)
_MAX_TOKENS = 10_000_000
_MAX_ROWS = 5_000_000
_MAX_MS = 366 * 86_400_000

Row = tuple[float, int, int]


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order of their arrival; the three arrays have the same length, at least 1.

    form: "azure", "mooncake" or "aibrix". arrivals_ms: from the start of the record (of the first
    request, where the form has only times of day). Tokens are those recorded, 0 included.
    """

    path: Path
    form: str
    arrivals_ms: array[float]
    input_tokens: array[int]
    output_tokens: array[int]

    @property
    def duration_s(self) -> float:
        """Seconds until the last arrival."""
        return self.arrivals_ms[-1] / 1000.0


class _BadRow(ValueError):
    """A row's fault, without its place."""


def load_trace(path: Path) -> Trace:
    """The trace in `path`; UserError with file, line and what is expected if it is not one."""
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: a damaged gzip file ({error})") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}; expected {_FORMS}") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path}: not text; expected {_FORMS}") from None
    lines = text.splitlines()
    first = next((number for number, line in enumerate(lines) if line.strip()), None)
    if first is None:
        raise UserError(f"{path}: empty; expected {_FORMS}")
    form, read = _form_of(path, first, lines[first].strip())
    body = enumerate(lines[first + (form != "mooncake") :], first + 1 + (form != "mooncake"))
    rows = sorted(_rows(path, read, body), key=lambda row: row[0])  # stable: ties keep their order
    if not rows:
        raise UserError(f"{path}: no requests after the header")
    origin = rows[0][0] if form == "azure" else 0.0
    return Trace(
        path,
        form,
        array("d", [row[0] - origin for row in rows]),
        array("q", [row[1] for row in rows]),
        array("q", [row[2] for row in rows]),
    )


def _form_of(path: Path, first: int, line: str) -> tuple[str, Callable[[str], Row]]:
    header = line.replace(" ", "").replace('"', "")
    if header == _AZURE:
        return "azure", _azure_row
    if header == _AIBRIX:
        return "aibrix", _aibrix_row
    if line.startswith("{"):
        return "mooncake", _mooncake_row
    shown = line if len(line) <= 60 else line[:57] + "..."
    raise UserError(f"{path}:{first + 1}: {shown!r} begins no trace; expected {_FORMS}")


def _rows(
    path: Path, read: Callable[[str], Row], lines: Iterable[tuple[int, str]]
) -> Iterator[Row]:
    for count, (number, line) in enumerate(lines):
        if count >= _MAX_ROWS:
            raise UserError(f"{path}:{number}: more than {_MAX_ROWS} requests")
        if not line.strip():
            continue
        try:
            yield read(line)
        except _BadRow as error:
            raise UserError(f"{path}:{number}: {error}") from None


def _azure_row(line: str) -> Row:
    when, context, generated = _columns(line, _AZURE)
    try:
        moment = datetime.fromisoformat(when)
    except ValueError:
        raise _BadRow(f"TIMESTAMP: {when[:40]!r} is no time like 2023-11-16 18:15:46.68") from None
    # Naive times are taken as they stand: only their differences count.
    since = (moment.replace(tzinfo=None) - datetime(1970, 1, 1)).total_seconds() * 1000.0
    return since, _tokens("ContextTokens", context), _tokens("GeneratedTokens", generated)


def _aibrix_row(line: str) -> Row:
    when, read, written = _columns(line, _AIBRIX)
    return (
        _whole("timestamp_ms", when, _MAX_MS),
        _tokens("input_tokens", read),
        _tokens("output_tokens", written),
    )


def _mooncake_row(line: str) -> Row:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise _BadRow(f"not JSON ({error})") from None
    if not isinstance(row, dict):
        raise _BadRow(f"expected an object with {', '.join(_MOONCAKE)}")
    for key in _MOONCAKE:
        if key not in row:
            raise _BadRow(f"{key} is missing; expected {', '.join(_MOONCAKE)}")
    when, read, written = (row[key] for key in _MOONCAKE)
    return (
        _whole("timestamp", when, _MAX_MS),
        _tokens("input_length", read),
        _tokens("output_length", written),
    )


def _columns(line: str, header: str) -> tuple[str, str, str]:
    columns = [column.strip().strip('"') for column in line.split(",")]
    if len(columns) != 3:
        raise _BadRow(f"{len(columns)} columns, expected 3: {header}")
    return columns[0], columns[1], columns[2]


def _tokens(field: str, value: object) -> int:
    return _whole(field, value, _MAX_TOKENS)


def _whole(field: str, value: object, high: int) -> int:
    found = value
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        found = int(value)
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= high:
        raise _BadRow(f"{field}: {str(value)[:40]!r} is not allowed; allowed: 0 to {high}")
    return found
