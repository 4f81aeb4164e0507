"""Reads the rows of a trace in a given format: tokens, times, models and sessions, each checked.

`traces` turns the rows into a trace.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from streams.files.tables import BLOCK_HASHES, OUTER, Row, Table, column
from streams.files.times import (
    DATE_EXAMPLE,
    MS_OF,
    UNIT_WORDS,
    Clock,
    UnclearUnit,
    clock_of,
    date_ms,
    finite_number,
    unit_of_name,
    without_unit,
)
from streams.files.user_errors import UserError
from streams.tools.replay.failed_calls import empty, reason_to_skip
from streams.tools.replay.trace_formats import (
    BUCKET_END,
    BUCKETS,
    FIELDS,
    KNOWN,
    LEGACY_BUCKET_S,
    NEEDED,
    Format,
    format_of,
    names_of,
)
from streams.tools.replay.trace_sessions import NO_DELAY_MS, NO_SESSION, Sessions

MAX_TOKENS = 10_000_000
MAX_ROWS = 5_000_000
_MOST_TIME = 1e19
_TIMES = ("time", "delay", "latency")
_EXAMPLE = "time=ts:ms,input=prompt_toks,output=gen_toks"
COLUMNS_HELP = (
    f"which column of a trace holds what, if names and units do not tell: {_EXAMPLE} "
    f"(fields: {', '.join(FIELDS)}; units of times: {', '.join(MS_OF)}); a number instead of a "
    "column of input or output counts for every request"
)
"""Help of the option --columns, which every command with a trace has."""
_SHOWN = 120


@dataclass(frozen=True, slots=True)
class Given:
    """The user's `--columns`. columns: the column of each field.

    units: "s", "ms", "us" or "ns" for each field with times whose unit the user names.
    """

    columns: tuple[tuple[str, str], ...] = ()
    units: tuple[tuple[str, str], ...] = ()


NO_COLUMNS = Given()


def parse_columns(text: str | None) -> Given:
    """The value of `--columns`, "time=ts:ms,input=prompt"; UserError for anything else."""
    columns, units = {}, {}
    for part in filter(None, (text or "").split(",")):
        what, equals, name = part.partition("=")
        stem, colon, unit = name.rpartition(":")
        if colon:
            units[what], name = unit, stem
        known = what in (_TIMES if colon else FIELDS) and (not colon or unit in MS_OF)
        if not (known and equals and column(name)):
            raise UserError(
                f"--columns: {part[:60]!r} is not allowed; allowed: FIELD=COLUMN of "
                f"{', '.join(FIELDS)}, times with a unit of {', '.join(MS_OF)} ({_EXAMPLE})"
            )
        columns[what] = column(name)
    return Given(tuple(columns.items()), tuple(units.items()))


class _BadRow(ValueError):
    """An error in a row. The caller adds the place of the row."""


class _Skip(Exception):
    """A row that is no finished request, with the reason. Such rows are counted."""


class Rows:
    """The rows of a table, in the order of the file, as arrays of the same length.

    at: dates in ms since 1970, or bare numbers; nan if a turn has only a delay. `delays` and
    latencies are in the unit of `unit_of`, and -1 if a row has none.
    """

    def __init__(self, path: Path, table: Table, given: Given) -> None:
        self.form: Format = format_of(set(table.columns))
        self.at: array[float] = array("d")
        self.inputs: array[int] = array("q")
        self.outputs: array[int] = array("q")
        self.models: list[str] = []
        self.sessions: array[int] = array("q")
        self.delays: array[float] = array("d")
        self.latencies: array[float] = array("d")
        self.hashes: list[array[int]] = []  # of each prompt's blocks; empty if no row has any
        self._path, self._table = path, table
        self._columns, self._units = dict(given.columns), dict(given.units)
        self._fixed = {
            what: int(name)
            for what, name in given.columns
            if what in ("input", "output")
            and name.isdecimal()
            and len(name) <= len(str(MAX_TOKENS))
        }
        self.skipped: Counter[str] = Counter()
        self._lacking = ""
        self._dates: bool | None = None
        self._names: dict[tuple[str, ...], dict[str, str]] = {}
        self._known: dict[str, str] = {}
        self._sessions = Sessions()
        self._column_of = {"time": "time", "delay": "delay", "latency": "latency"}
        self._read()

    def _read(self) -> None:
        path, table = self._path, self._table
        of_header = self._resolve(table.place, table.columns) if table.columns else None
        first = True
        for place, row in table.rows:
            if first and not table.columns:
                self.form = format_of(set(row))
            first = False
            if len(self.at) >= MAX_ROWS:
                raise UserError(f"{place}: more than {MAX_ROWS} requests")
            if self.form.only and row.get(self.form.only[0]) != self.form.only[1]:
                continue
            try:
                self._take(row, of_header or self._resolve(place, tuple(row)))
            except _Skip as reason:
                self.skipped[str(reason)] += 1
            except _BadRow as error:
                raise UserError(f"{place}: {error}") from None
        if not self.at and self._lacking:
            raise UserError(self._lacking)
        if not self.at:
            after = " after the header" if table.columns else ""
            raise UserError(f"{path}: no requests{after}{self._skipped_said()}")

    def clock(self) -> Clock:
        """The conversion of the time column to ms. UserError if the unit cannot be determined from
        the values."""
        if self._dates:
            return Clock("ms", dated=True)
        name = self._column_of["time"]
        certain = self._units.get("time") or unit_of_name(name)
        values = [value for value in self.at if not math.isnan(value)]
        unit = certain or ("" if "time" in self._columns else self.form.time_unit)
        try:
            return clock_of(values, unit, bool(certain))
        except UnclearUnit:
            some = ", ".join(f"{value:.12g}" for value in values[:3])
            raise UserError(
                f"{self._path}: {name}: {some}, ...: seconds or milliseconds? Say --columns "
                f"time={name}:s or --columns time={name}:ms"
            ) from None

    def clock_said(self, clock: Clock) -> str:
        """The format of times, as text: "timestamp in milliseconds"."""
        name = self._column_of["time"]
        words = f"{UNIT_WORDS[clock.unit]}{' since 1970' if clock.dated else ''}"
        return f"{name}: {'dates' if self._dates else words}{self._skipped_said()}"

    def _skipped_said(self) -> str:
        parts = ", ".join(f"{count} {reason}" for reason, count in self.skipped.most_common())
        return f"; rows left out: {parts}" if parts else ""

    def unit_of(self, what: str, clock: Clock) -> str:
        """The unit of "delay" or "latency"."""
        of_form = self.form.latency_unit if what == "latency" else ""
        of_times = "s" if self._dates else clock.unit
        name = self._column_of[what]
        return self._units.get(what) or unit_of_name(name) or of_form or of_times

    # -- a row -----------------------------------------------------------------------------------

    def _take(self, row: Row, names: Mapping[str, str]) -> None:
        if reason := reason_to_skip(row, filtered=bool(self._fixed)):
            raise _Skip(reason)
        read, written = (self._tokens(row, names, what) for what in ("input", "output"))
        if read == 0 and written == 0:
            raise _Skip("with 0 tokens (failed calls)")
        session, turn = self._session(row, names)
        delay = _span(row, names, "delay")
        when = _cell(row, names, "time")
        if when is None and not (turn and delay >= 0.0):
            if "delay" not in names:
                raise _Skip("without a time")
            raise _BadRow(
                f"{names.get('time', 'time')} is missing; expected a time, or a delay after an "
                "earlier turn of its session"
            )
        latency = _span(row, names, "latency")
        if latency < 0.0 and self.form.finished:
            raise _BadRow(f"{self.form.columns['latency'][0]} is missing")
        at = math.nan if when is None else self._moment(names["time"], when)
        count, span = self._bucket(row, at) if self.form.counted else (1, 0.0)
        if len(self.at) + count > MAX_ROWS:
            raise _BadRow(f"more than {MAX_ROWS} requests")
        for each in range(count):
            self._name_model(row, names)
            self._take_hashes(row)
            self.at.append(at + (each + 0.5) / count * span if span else at)
            self.inputs.append(read * (each + 1) // count - read * each // count)
            self.outputs.append(written * (each + 1) // count - written * each // count)
            self.sessions.append(session)
            self.delays.append(delay)
            self.latencies.append(latency)

    def _bucket(self, row: Row, begin: float) -> tuple[int, float]:
        """The requests that a row sums up, and their span in the unit of its time."""
        name = next(name for name in BUCKETS if name in row)
        number = finite_number(row[name])
        if number is None or not 0 <= number <= MAX_ROWS or number != int(number):
            raise _BadRow(
                f"{name}: {str(row[name])[:40]!r} is not allowed; allowed: a whole number from 0 "
                f"to {MAX_ROWS}"
            )
        end = row.get(BUCKET_END)
        unit = 1000.0 if self._dates else 1.0  # Dates are ms.
        if end in (None, ""):
            return int(number), LEGACY_BUCKET_S * unit
        span = self._moment(BUCKET_END, end) - begin
        if span <= 0.0:
            raise _BadRow(f"{BUCKET_END}: {str(end)[:40]!r} is not after the start")
        return int(number), span

    def _tokens(self, row: Row, names: Mapping[str, str], what: str) -> int:
        """The tokens of a row. _Skip: the row has none."""
        if what in self._fixed:
            return self._fixed[what]
        value = _cell(row, names, what)
        if value is None:
            raise _Skip("without token counts")
        number = finite_number(value)
        most = MAX_TOKENS * MAX_ROWS if self.form.counted else MAX_TOKENS
        if number is None or not 0 <= number <= most or number != int(number):
            raise _BadRow(
                f"{names[what]}: {str(value)[:40]!r} is not allowed; allowed: a whole number from "
                f"0 to {most}; --columns {what}=COLUMN names another column"
            )
        return int(number)

    def _name_model(self, row: Row, names: Mapping[str, str]) -> None:
        if "model" not in names and not self.models:
            return
        model = _cell(row, names, "model")
        if model is None:
            raise _BadRow(f"{names.get('model', 'model')}: is empty; expected a name")
        if len(self.models) < len(self.at):
            raise _BadRow(f"{names['model']}: the rows before have none")
        self.models.append(self._known.setdefault(str(model), str(model)))

    def _take_hashes(self, row: Row) -> None:
        """Store the hashes of the row's blocks. Rows before the first one with hashes have none."""
        value = row.get(BLOCK_HASHES)
        if value is None and not self.hashes:
            return
        if value is not None and not isinstance(value, list):
            raise _BadRow(f"{BLOCK_HASHES}: {str(value)[:40]!r} is not allowed; allowed: a list")
        self.hashes += [array("q")] * (len(self.at) - len(self.hashes))
        try:
            self.hashes.append(array("q", value or ()))
        except (TypeError, OverflowError):
            raise _BadRow(
                f"{BLOCK_HASHES}: {str(value)[:40]} is not allowed; allowed: whole numbers below "
                "2^63"
            ) from None

    def _session(self, row: Row, names: Mapping[str, str]) -> tuple[int, bool]:
        """The session of a row, and whether an earlier row belongs to it."""
        if (chat := _cell(row, names, "chat")) is not None:
            return self._sessions.of_chat(str(chat), str(_cell(row, names, "parent")))
        key = _cell(row, names, "session")
        if key is None and self.form.turns:
            key = row.get(OUTER)
        if key is not None:
            return self._sessions.of_key(str(key))
        return NO_SESSION, False

    def _moment(self, name: str, value: object) -> float:
        number = finite_number(value)
        dates = number is None if self._dates is None else self._dates
        found = date_ms(value) if dates else number
        if found is None or not 0.0 <= found <= _MOST_TIME:
            shown = value.isoformat() if isinstance(value, datetime) else str(value)
            allowed = f"a number from 0 on, or a date ({DATE_EXAMPLE})"
            if self._dates is not None:
                allowed = f"a date ({DATE_EXAMPLE})" if dates else "a number from 0 on"
                allowed += ", as in the rows before"
            raise _BadRow(f"{name}: {shown[:40]!r} is not allowed; allowed: {allowed}")
        self._dates = dates
        return found

    # -- columns ---------------------------------------------------------------------------------

    def _resolve(self, place: str, columns: tuple[str, ...]) -> dict[str, str]:
        """The column of each field among `columns`. UserError: a required column is missing."""
        found = self._names.get(columns)
        if found is None:
            found = {}
            for what in FIELDS:
                names = names_of(self.form, what, self._columns)
                if name := _column(names, columns, what in _TIMES):
                    found[what] = name
                    if what in _TIMES:
                        self._column_of[what] = name
                    if columns.count(name) > 1:
                        raise UserError(f"{place}: the column {name} appears twice")
            self._refuse_missing(place, columns, found)
            self._names[columns] = found
        return found

    def _refuse_missing(
        self, place: str, columns: tuple[str, ...], found: Mapping[str, str]
    ) -> None:
        missing = [what for what in NEEDED if what not in found and what not in self._fixed]
        shown = self._table.shown
        shown = shown if len(shown) <= _SHOWN // 2 else shown[: _SHOWN // 2 - 3] + "..."
        if self.form.only is None and len(missing) == len(NEEDED) and not self.at:
            raise UserError(f"{place}: {shown!r} begins no trace; expected {KNOWN}")
        asked = [w for w in self._columns if w not in found and w not in self._fixed]
        for what in asked if self._table.columns else ():
            raise UserError(
                f"{place}: --columns {what}={self._columns[what]}: no such column; columns "
                f"are {_listed(columns)}"
            )
        if missing:
            constant = ", or a number for every request" if missing[0] != "time" else ""
            lacking = (
                f"{place}: {shown!r}: the column {_usual(missing[0])} is missing; name it with "
                f"--columns {missing[0]}=COLUMN of {_listed(columns)}{constant}"
            )
            if self._table.columns:
                raise UserError(lacking)
            self._lacking = self._lacking or lacking


def _cell(row: Row, names: Mapping[str, str], what: str) -> object:
    """The row's value for a field; None if it has none."""
    name = names.get(what)
    value = row.get(name) if name else None
    return None if empty(value) else value


def _span(row: Row, names: Mapping[str, str], what: str) -> float:
    value = _cell(row, names, what)
    if value is None:
        return NO_DELAY_MS
    number = finite_number(value)
    if number is None or not 0.0 <= number <= _MOST_TIME:
        raise _BadRow(
            f"{names[what]}: {str(value)[:40]!r} is not allowed; allowed: a number from 0 on"
        )
    return number


def _usual(what: str) -> str:
    return {"input": "input_tokens", "output": "output_tokens"}.get(what, what)


def _listed(columns: tuple[str, ...]) -> str:
    text = ", ".join(columns)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def _column(names: tuple[str, ...], columns: tuple[str, ...], timed: bool) -> str:
    """The column for the first name in `names` that matches any of `columns`.

    If several columns match, the least nested one.
    """
    for name in names:
        fitting = [
            one
            for one in columns
            for stem in ((one, without_unit(one)) if timed else (one,))
            if stem == name or stem.endswith(f".{name}")
        ]
        if fitting:
            return min(fitting, key=len)
    return ""
