"""Read decision logs: the segments, and the content of each segment.

If the last line of a segment is incomplete, the lines before it are read, because a controller may
be killed during a write. Any other damage is refused with file and line.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import orjson

from autoscaler.decide import ControllerState
from autoscaler.domain.cluster import Cluster
from streams.decision_log.log_entries import FORM, Start, Tick
from streams.decision_log.log_writer import SUFFIX, started_ms
from streams.decision_log.observation_diff import ObservationReader
from streams.files.user_errors import UserError
from topics.codec import read_value
from topics.decisions import Decision

_CHUNK = 1 << 20
_DECISIONS = tuple[Decision, ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment of a decision log. began_ms: its start time, from the file name."""

    path: Path
    began_ms: int

    @property
    def controller(self) -> str:
        """Name of the controller that wrote the segment, from the file name."""
        return unquote(self.path.name.removesuffix(SUFFIX).split("-", 1)[-1])

    def read(self) -> tuple[Start, Iterator[Tick]]:
        """The segment's start and its ticks. UserError: the file cannot be read."""
        lines = self._lines()
        try:
            first = next(lines)
        except StopIteration:
            raise UserError(f"{self.path}: empty, nothing was recorded") from None
        with _named(self.path, 1):
            start = _start(first)
        return start, self._ticks(start.cluster, lines)

    def _ticks(self, cluster: Cluster, lines: Iterator[dict[str, Any]]) -> Iterator[Tick]:
        observations = ObservationReader()
        for number, line in enumerate(lines, 2):
            with _named(self.path, number):
                if "cluster" in line:
                    cluster = read_value(Cluster, line["cluster"])
                tick = Tick(
                    int(line["now_ms"]),
                    observations.read(line["seen"]),
                    cluster,
                    str(line.get("effects", "")),
                    read_value(_DECISIONS, line.get("decisions", [])),
                )
            yield tick

    def _lines(self) -> Iterator[dict[str, Any]]:
        unpacker, rest = zlib.decompressobj(31), b""
        number = 0
        try:
            with self.path.open("rb") as file:
                while chunk := file.read(_CHUNK):
                    *whole, rest = (rest + unpacker.decompress(chunk)).split(b"\n")
                    for line in whole:
                        found = orjson.loads(line)
                        number += 1
                        if not isinstance(found, dict):
                            raise UserError(f"{self.path}: line {number}: not a JSON object")
                        yield found
        except (OSError, zlib.error, orjson.JSONDecodeError) as error:
            raise UserError(f"{self.path}: line {number + 1}: {error}") from error


def segments(folder: Path) -> list[Segment]:
    """The segments in `folder`, oldest first; `folder` may also be the file of a single segment.
    UserError: there is no segment."""
    if folder.is_file():
        return [Segment(folder, started_ms(folder))]
    found = [Segment(path, started_ms(path)) for path in folder.glob(f"*{SUFFIX}")]
    if not found:
        raise UserError(f"{folder}: no decision log here (files *{SUFFIX})")
    return sorted(found, key=lambda segment: (segment.began_ms, segment.path.name))


def _start(line: dict[str, Any]) -> Start:
    if line.get("form") != FORM:
        raise ValueError(
            f"written in form {line.get('form')}, and this version reads form {FORM} alone"
        )
    return Start(
        str(line["version"]),
        str(line["controller"]),
        int(line["at_ms"]),
        read_value(Cluster, line["cluster"]),
        read_value(ControllerState, line["state"]),
    )


@contextmanager
def _named(path: Path, number: int) -> Iterator[None]:
    """Convert errors in the content of a line to a UserError with file and line."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: line {number}: {error}") from error
