"""Recorded request traces, read from any table in a known or declared format.

Times are put on one axis. Turns of a session are marked, so that a replay can wait for the previous
answer.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from pathlib import Path

from streams.files.tables import Table, is_parquet, of_rows, read_table, read_text, table_of
from streams.files.times import MS_OF
from streams.files.user_errors import UserError
from streams.tools.replay.access_logs import access_rows, is_access_log
from streams.tools.replay.trace_blocks import block_size, full_blocks
from streams.tools.replay.trace_formats import GROUPS, KNOWN
from streams.tools.replay.trace_logs import is_log, log_rows
from streams.tools.replay.trace_reader import COLUMNS_HELP, NO_COLUMNS, Given, Rows, parse_columns
from streams.tools.replay.trace_sessions import NO_SESSION, arrivals_with_turns, of_several_turns

__all__ = [
    "COLUMNS_HELP",
    "NO_COLUMNS",
    "Given",
    "Trace",
    "load_trace",
    "parse_columns",
]

_MAX_MS = 366 * 86_400_000.0


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order of arrival, as arrays of the same length, at least 1.

    form: the format's name, "columns" for a table of no known format, or "servegen". arrivals_ms:
    from the start of the record (from the first request if times are dates). Tokens are the
    recorded ones, which may be 0. models: the model of each request, empty if the record names
    none. sessions: the session of each request, -1 for none; empty if no session has several turns.
    delays_ms: delay of each request from the end of the previous turn. -1: the turn is sent at its
    arrival time, or after the previous turn if that ends later. clock: how times were read and
    which rows were left out, as text. origin_ms: ms since 1970 of arrivals_ms 0, None if times are
    not dates. blocks: hashes of the full blocks, of block_tokens tokens, of each prompt; empty if
    the record has none.
    """

    path: Path
    form: str
    arrivals_ms: array[float]
    input_tokens: array[int]
    output_tokens: array[int]
    models: tuple[str, ...] = ()
    sessions: array[int] = field(default_factory=lambda: array("q"))
    delays_ms: array[float] = field(default_factory=lambda: array("d"))
    clock: str = ""
    origin_ms: float | None = None
    blocks: tuple[array[int], ...] = ()
    block_tokens: int = 0

    @property
    def duration_s(self) -> float:
        """Seconds until the last arrival."""
        return self.arrivals_ms[-1] / 1000.0

    @property
    def turns(self) -> int:
        """Requests that belong to a session of several turns."""
        return sum(session != NO_SESSION for session in self.sessions)


def load_trace(path: Path, given: Given = NO_COLUMNS) -> Trace:
    """The trace in `path`. UserError, with file, line and the allowed form, if the file is not a
    trace."""
    rows = Rows(path, _table(path), given)
    clock = rows.clock()
    at_ms = array("d", [MS_OF[clock.unit] * value for value in rows.at])
    latencies_ms = _in_ms(rows.latencies, MS_OF[rows.unit_of("latency", clock)])
    if rows.form.finished:
        at_ms = array("d", [at - took for at, took in zip(at_ms, latencies_ms, strict=True)])
    delays_ms = _in_ms(rows.delays, MS_OF[rows.unit_of("delay", clock)])
    sessions = of_several_turns(rows.sessions)
    if sessions:
        at_ms, delays_ms = arrivals_with_turns(
            at_ms, rows.outputs, sessions, delays_ms, latencies_ms
        )
    size = block_size(rows.inputs, rows.hashes)
    order = sorted(range(len(at_ms)), key=at_ms.__getitem__)  # stable: ties keep their order
    first_ms, last_ms = at_ms[order[0]], at_ms[order[-1]]
    origin_ms = first_ms if clock.dated else 0.0
    if not last_ms - origin_ms <= _MAX_MS:
        raise UserError(
            f"{path}: requests from {origin_ms / 1e3:.12g} s to {last_ms / 1e3:.12g} s; "
            "allowed: 366 days"
        )
    return Trace(
        path,
        rows.form.name,
        array("d", [at_ms[row] - origin_ms for row in order]),
        array("q", [rows.inputs[row] for row in order]),
        array("q", [rows.outputs[row] for row in order]),
        tuple(rows.models[row] for row in order) if rows.models else (),
        array("q", [sessions[row] for row in order]) if sessions else array("q"),
        array("d", [delays_ms[row] for row in order]) if sessions else array("d"),
        rows.clock_said(clock),
        origin_ms if clock.dated else None,
        tuple(full_blocks(rows.inputs[row], rows.hashes[row], size) for row in order)
        if size
        else (),
        size,
    )


def _table(path: Path) -> Table:
    if is_parquet(path):
        return read_table(path, KNOWN, GROUPS)
    text = read_text(path, KNOWN)
    if is_access_log(text):
        return of_rows(access_rows(path, text), text.lstrip().split("\n", 1)[0])
    if is_log(text):
        return of_rows(log_rows(path, text), text.lstrip().split("\n", 1)[0])
    return table_of(path, text, KNOWN, GROUPS)


def _in_ms(values: array[float], factor: float) -> array[float]:
    return array("d", [value * factor if value >= 0.0 else value for value in values])
