"""Read decision logs: segments, the spans in them, and the gaps between the spans.

A span is a start with the ticks after it. A damaged record ends its span, because a tick holds only
the differences from the tick before it; reading continues at the next start. Every gap is reported
with its place, its records and its time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoscaler.decide import ControllerState
from autoscaler.domain.cluster import Cluster
from streams.decision_log.log_entries import Start, Tick
from streams.decision_log.log_lines import Damage, Kind, Line, read_lines
from streams.decision_log.log_segment import SUFFIX, controller_of, segment_paths, started_ms
from streams.decision_log.observation_diff import ObservationReader
from streams.files.user_errors import UserError
from topics.codec import read_value
from topics.decisions import Decision

_DECISIONS = tuple[Decision, ...]
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError)


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment of a decision log. began_ms: its start time, from the file name."""

    path: Path
    began_ms: int

    @property
    def controller(self) -> str:
        """Name of the controller that wrote the segment, from the file name."""
        return controller_of(self.path)


@dataclass(frozen=True, slots=True)
class Gap:
    """Ticks that cannot be read. offset: of the gzip member in the file. records: number of
    records, None if it is unknown. from_ms, to_ms: times of the records before and after, 0 if
    there are none."""

    path: Path
    offset: int
    why: str
    records: int | None
    from_ms: int
    to_ms: int

    def concerns(self, since_ms: int, until_ms: int) -> bool:
        """Whether the gap may contain a tick of [since_ms, until_ms]."""
        return self.from_ms <= until_ms and (not self.to_ms or self.to_ms >= since_ms)


@dataclass(frozen=True, slots=True)
class Span:
    """A start with its ticks. Read the ticks before the next span."""

    start: Start
    ticks: Iterator[Tick]


def read_spans(segments: Iterable[Segment], gaps: list[Gap]) -> Iterator[Span]:
    """The spans of the segments of one controller, in their order. Gaps are added to `gaps` as they
    are met; the last one is added at the end."""
    reader = _Reader(gaps)
    for segment in segments:
        yield from reader.spans(segment.path)
    reader.close_gap(0, None)


class _Reader:
    """Reads segments one after the other. It remembers the last record before a gap."""

    def __init__(self, gaps: list[Gap]) -> None:
        self._gaps = gaps
        self._hash = ""
        self._number: int | None = None
        self._at_ms = 0
        self._fits = False  # Whether the last line fitted the chain and could be decoded.
        self._damage: tuple[Path, Damage] | None = None

    def spans(self, path: Path) -> Iterator[Span]:
        """The spans of one file."""
        lines = self._checked(path)
        line = next(lines, None)
        while line is not None:
            if line.head.kind is not Kind.START:
                line = next(lines, None)
                continue
            try:
                start = _start(line)
            except _UNREADABLE as error:
                self._undecodable(path, line, error)
                line = next(lines, None)
                continue
            following: list[Line] = []
            yield Span(start, self._ticks(path, start.cluster, lines, following))
            line = (
                next((one for one in lines if one.head.kind is Kind.START), None)
                if (not following)
                else following[0]
            )

    def _ticks(
        self, path: Path, cluster: Cluster, lines: Iterator[Line], following: list[Line]
    ) -> Iterator[Tick]:
        """The ticks up to the next start, which is added to `following`."""
        observations = ObservationReader()
        for line in lines:
            if line.head.kind is Kind.START:
                following.append(line)
                return
            if line.head.kind is Kind.END:
                continue
            try:
                body: dict[str, Any] = line.body()
                if "cluster" in body:
                    cluster = read_value(Cluster, body["cluster"])
                tick = Tick(
                    line.head.at_ms,
                    observations.read(body["seen"]),
                    cluster,
                    str(body.get("effects", "")),
                    read_value(_DECISIONS, body.get("decisions", [])),
                )
            except _UNREADABLE as error:
                self._undecodable(path, line, error)
                return
            yield tick

    def _checked(self, path: Path) -> Iterator[Line]:
        """The lines of a file that fit the chain. After one that does not, the next is a start."""
        self._fits = False
        try:
            for one in read_lines(path):
                if isinstance(one, Damage):
                    self._note(path, one)
                    continue
                head = one.head
                is_start = head.kind is Kind.START
                if not (is_start or self._fits):
                    continue
                if not one.follows(head.previous if is_start else self._hash):
                    self._note(path, Damage(one.offset, f"record {head.number} was changed"))
                    continue
                self._fits = True
                if is_start:
                    self.close_gap(head.at_ms, head.number)
                    if head.lost:
                        why = "not written, because the controller could not write"
                        place = Damage(one.offset, why)
                        self._add(path, place, head.lost, head.lost_since_ms, head.at_ms)
                self._hash, self._number, self._at_ms = one.hash, head.number, head.at_ms
                yield one
        except OSError as error:
            self._note(path, Damage(0, error.strerror or str(error)))

    def _note(self, path: Path, damage: Damage) -> None:
        """Note a damage. The gap ends at the next start, in this or in a later file."""
        self._fits = False
        if self._damage is None:
            self._damage = path, damage

    def _undecodable(self, path: Path, line: Line, error: Exception) -> None:
        """Note a record that fits the chain and has an invalid body."""
        self._number = line.head.number - 1
        self._note(path, Damage(line.offset, f"record {line.head.number}: {error}"))

    def close_gap(self, to_ms: int, number: int | None) -> None:
        """End the gap of the last damage, if there is one, at the record `number`."""
        if self._damage is None:
            return
        records = None
        if number is not None and self._number is not None and number > self._number:
            records = number - self._number - 1
        path, damage = self._damage
        if not (damage.torn and records == 0):  # nothing was cut off but an incomplete record
            self._add(path, damage, records, self._at_ms, to_ms)
        self._damage = None

    def _add(
        self, path: Path, damage: Damage, records: int | None, from_ms: int, to_ms: int
    ) -> None:
        self._gaps.append(Gap(path, damage.offset, damage.why, records, from_ms, to_ms))


def segments(folder: Path) -> list[Segment]:
    """The segments in `folder`, oldest first; `folder` may also be the file of a single segment.
    UserError: there is no segment."""
    paths = [folder] if folder.is_file() else segment_paths(folder)
    if not paths:
        raise UserError(f"{folder}: no decision log here (files *{SUFFIX})")
    return [Segment(path, started_ms(path)) for path in paths]


def _start(line: Line) -> Start:
    body: dict[str, Any] = line.body()
    return Start(
        str(body["version"]),
        str(body["controller"]),
        line.head.at_ms,
        read_value(Cluster, body["cluster"]),
        read_value(ControllerState, body["state"]),
    )
