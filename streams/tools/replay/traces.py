"""Recorded request traces: Azure CSV, Mooncake JSONL, AIBrix CSV, plain CSV; gzipped or not.

Owns reading the forms, told apart by their first line, and saying which file and line does not
fit. Knows nothing of clocks or sending.
"""

from __future__ import annotations

import gzip
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import orjson

from streams.files.csv_rows import text_of
from streams.files.user_errors import UserError

_AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
_AIBRIX = "timestamp_ms,input_tokens,output_tokens"
_MOONCAKE = ("timestamp", "input_length", "output_length")
_PLAIN = ("time", "input_tokens", "output_tokens")
_MODEL = "model"
_FORMS = (
    f"an Azure CSV ({_AZURE}), a Mooncake JSONL ({', '.join(_MOONCAKE)}), "
    f"an AIBrix CSV ({_AIBRIX}) or a CSV with the columns time (seconds or a date), model, "
    "input_tokens, output_tokens, plain or .gz"
)
_SINCE_EPOCH_S = 1e8
_MAX_TOKENS = 10_000_000
_MAX_ROWS = 5_000_000
_MAX_MS = 366 * 86_400_000

Row = tuple[float, int, int] | tuple[float, int, int, str]


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order of their arrival; the arrays have the same length, at least 1.

    form: "azure", "mooncake", "aibrix", "plain" or "servegen". arrivals_ms: from the start of the
    record (of the first request, where the form has only dates). Tokens are those recorded, 0
    included. models: of each request, empty where the form names none.
    """

    path: Path
    form: str
    arrivals_ms: array[float]
    input_tokens: array[int]
    output_tokens: array[int]
    models: tuple[str, ...] = ()

    @property
    def duration_s(self) -> float:
        """Seconds until the last arrival."""
        return self.arrivals_ms[-1] / 1000.0


class _BadRow(ValueError):
    """A row's fault, without its place."""


def load_trace(path: Path) -> Trace:
    """The trace in `path`; UserError with file, line and what is expected if it is not one."""
    lines = read_lines(path)
    first = next((number for number, line in enumerate(lines) if line.strip()), None)
    if first is None:
        raise UserError(f"{path}: empty; expected {_FORMS}")
    form, read = _form_of(path, first, lines[first].strip())
    body = enumerate(lines[first + (form != "mooncake") :], first + 1 + (form != "mooncake"))
    rows = sorted(_rows(path, read, body), key=lambda row: row[0])  # stable: ties keep their order
    if not rows:
        raise UserError(f"{path}: no requests after the header")
    dated = form == "azure" or (form == "plain" and rows[0][0] >= 1000.0 * _SINCE_EPOCH_S)
    origin = rows[0][0] if dated else 0.0
    if rows[-1][0] - origin > _MAX_MS:
        first_s, last_s = origin / 1000.0, rows[-1][0] / 1000.0
        raise UserError(
            f"{path}: requests from {first_s:.12g} s to {last_s:.12g} s; allowed: 366 days"
        )
    return Trace(
        path,
        form,
        array("d", [row[0] - origin for row in rows]),
        array("q", [row[1] for row in rows]),
        array("q", [row[2] for row in rows]),
        tuple(row[3] for row in rows if len(row) == 4),
    )


def read_lines(path: Path, expected: str = _FORMS) -> list[str]:
    """The lines of a text file, gzipped or not; UserError, which says what is expected, where it
    is none."""
    try:
        return text_of(path).splitlines()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: a damaged gzip file ({error})") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}; expected {expected}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not text; expected {expected}") from None


def _form_of(path: Path, first: int, line: str) -> tuple[str, Callable[[str], Row]]:
    header = line.replace(" ", "").replace('"', "")
    if header == _AZURE:
        return "azure", _azure_row
    if header == _AIBRIX:
        return "aibrix", _aibrix_row
    if line.startswith("{"):
        return "mooncake", _mooncake_row
    columns = [column.lower() for column in header.split(",")]
    named = sorted(set(columns) - {_MODEL})
    if named == sorted(_PLAIN) and len(columns) == len(set(columns)):
        return "plain", partial(_plain_row, tuple(columns), {})
    missing = [column for column in _PLAIN if column not in columns]
    if len(missing) < len(_PLAIN):
        what = f"the column {missing[0]} is missing" if missing else "a column is not known"
        if not missing and len(columns) != len(set(columns)):
            what = "a column is there twice"
        raise UserError(f"{path}:{first + 1}: {line[:60]!r}: {what}; expected {_FORMS}")
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
    since = 1000.0 * _since_epoch_s(moment)
    return since, _tokens("ContextTokens", context), _tokens("GeneratedTokens", generated)


def _since_epoch_s(moment: datetime) -> float:
    """With an offset the instant that is meant; without one as it stands, since only differences
    count."""
    return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()


def _aibrix_row(line: str) -> Row:
    when, read, written = _columns(line, _AIBRIX)
    return (
        _whole("timestamp_ms", when, _MAX_MS),
        _tokens("input_tokens", read),
        _tokens("output_tokens", written),
    )


def _plain_row(columns: tuple[str, ...], known: dict[str, str], line: str) -> Row:
    cells = [cell.strip().strip('"') for cell in line.split(",")]
    if len(cells) != len(columns):
        raise _BadRow(f"{len(cells)} columns, expected {len(columns)}: {','.join(columns)}")
    row = dict(zip(columns, cells, strict=True))
    at_ms = _moment_ms(row["time"])
    read = _tokens("input_tokens", row["input_tokens"])
    written = _tokens("output_tokens", row["output_tokens"])
    if _MODEL not in row:
        return at_ms, read, written
    if not row[_MODEL]:
        raise _BadRow("model: is empty; expected a name")
    return at_ms, read, written, known.setdefault(row[_MODEL], row[_MODEL])


def _moment_ms(text: str) -> float:
    """Seconds, or a date."""
    try:
        seconds = float(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            allowed = "seconds (12.5) or a date (2023-11-16 18:15:46.68)"
            raise _BadRow(f"time: {text[:40]!r} is not allowed; allowed: {allowed}") from None
        seconds = _since_epoch_s(moment)
    if not 0.0 <= seconds <= 1e11:
        raise _BadRow(f"time: {text[:40]!r} is not allowed; allowed: 0 to 1e11 seconds")
    return 1000.0 * seconds


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
        allowed = f"a whole number from 0 to {high}"
        raise _BadRow(f"{field}: {str(value)[:40]!r} is not allowed; allowed: {allowed}")
    return found
