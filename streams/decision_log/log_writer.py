"""Write the decision log: in a thread, in segments, within a bounded size.

A tick queues its values and continues at once. Ticks that cannot be written are counted and
reported; the controller continues. A start with the whole state is written every two minutes and
after a fault, so a replay can begin at any of them.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from autoscaler.decide import ControllerState
from autoscaler.domain.cluster import Cluster
from streams.decision_log.log_entries import decisions_of, digest
from streams.decision_log.log_segment import (
    ChainEnd,
    LastRecord,
    SegmentFile,
    chain_end,
    segment_paths,
)
from streams.decision_log.observation_diff import ObservationWriter
from streams.loop.tick_loop import TickResult
from topics.keys import Keys
from topics.record_chain import NO_RECORD
from topics.storage.durable_files import cut_file
from topics.storage.private_files import private_folder

log = logging.getLogger(__name__)

_RELEASE = version("shoal")
SEGMENT_S, START_S = 600, 120
_MOST_WAITING = 120
_FIRST_RETRY_S, _MOST_RETRY_S = 1.0, 30.0


@dataclass(frozen=True, slots=True)
class LogStatus:
    """Status of the log. fault: the reason why it cannot be written, "" if it can. lost: ticks that
    were not written. number, hash: of the last record, -1 and zeros before the first one."""

    folder: str
    fault: str = ""
    lost: int = 0
    number: int = -1
    hash: str = NO_RECORD


class DecisionLog:
    """A log in `folder`, with at most `most_bytes` over all its segments.

    `start` only starts the thread; the first tick creates the folder. Each segment covers
    `segment_s` domain seconds, and each start in it `start_s`. keys: sign the heads of the chain.
    """

    def __init__(
        self,
        folder: Path,
        controller: str,
        most_bytes: int = 1 << 30,
        segment_s: int = SEGMENT_S,
        monotonic_s: Callable[[], float] = time.monotonic,
        keys: Keys = Keys(),  # noqa: B008  a frozen value
        start_s: int = START_S,
    ) -> None:
        self._folder = folder
        self._controller = controller
        self._most_bytes = most_bytes
        self._segment_ms, self._start_ms = segment_s * 1000, start_s * 1000
        self._monotonic_s = monotonic_s
        self._keys = keys
        self._waiting: queue.Queue[TickResult | None] = queue.Queue(_MOST_WAITING)
        self._thread = threading.Thread(target=self._run, name="decision-log", daemon=True)
        self._end: ChainEnd | None = None
        self._segment: SegmentFile | None = None
        self._torn: tuple[Path, int] | None = None
        self._observations = ObservationWriter()
        self._cluster: Cluster | None = None
        self._after: ControllerState | None = None
        self._began_ms = self._started_ms = 0
        self._retry_s, self._retry_at_s = _FIRST_RETRY_S, 0.0
        self._overrun = threading.Event()
        self._refused = self._failed = self._recorded_lost = 0
        self._fault = ""

    @property
    def lost(self) -> int:
        """Ticks that were not written."""
        return self._refused + self._failed

    def status(self) -> LogStatus:
        """The present status, for reports."""
        last = self._end.last if self._end is not None else LastRecord()
        return LogStatus(str(self._folder), self._fault, self.lost, last.number, last.hash)

    def facts(self) -> dict[str, Any]:
        """`status` as JSON."""
        return asdict(self.status())

    def start(self) -> None:
        """Start the writer thread."""
        self._thread.start()

    def tick(self, done: TickResult) -> None:
        """Queue one tick."""
        try:
            self._waiting.put_nowait(done)
        except queue.Full:
            self._refused += 1
            self._overrun.set()

    def close(self, within_s: float = 2.0) -> None:
        """Write pending ticks and stop, within at most `within_s` real seconds."""
        try:
            self._waiting.put(None, timeout=within_s)
        except queue.Full:
            return
        self._thread.join(within_s)

    def _run(self) -> None:
        while (done := self._waiting.get()) is not None:
            self.record(done)
        self.end()

    def record(self, done: TickResult) -> None:
        """Write one tick, in the thread of the caller. A fault is reported and counted."""
        if self._fault and self._monotonic_s() < self._retry_at_s:
            self._failed += 1
            return
        try:
            self._write(done)
        except Exception as error:  # This is a disk error, or a value without a JSON form.
            self._failed += 1
            self._drop_segment()
            self._retry_at_s = self._monotonic_s() + self._retry_s
            self._retry_s = min(_MOST_RETRY_S, 2 * self._retry_s)
            why = f"cannot write to {self._folder}: {error}"
            if not self._fault:
                log.error("decision log: %s; decisions continue without it", why)
            self._fault = why
            return
        if self._fault:
            log.warning("decision log: written again; %d ticks are missing", self._recorded_lost)
        self._fault, self._retry_s = "", _FIRST_RETRY_S

    def end(self) -> None:
        """Close the segment, in the thread of the caller."""
        try:
            self._end_segment()
        except OSError as error:
            log.error("decision log: %s", error)
            self._drop_segment()

    def _write(self, done: TickResult) -> None:
        cluster, now_ms, effects = done.cluster, done.now_ms, done.effects
        if self._overrun.is_set():
            self._overrun.clear()
            self._drop_segment()
        elsewhere = done.before is not self._after  # For example, this controller began to lead.
        if self._segment is not None and (elsewhere or now_ms - self._began_ms >= self._segment_ms):
            self._end_segment()
        self._after = done.after
        if self._segment is None:
            self._begin_segment(done.before, cluster, now_ms)
        elif now_ms - self._started_ms >= self._start_ms:
            self._start(self._segment, done.before, cluster, now_ms)
        line: dict[str, Any] = {"seen": self._observations.write(done.observation)}
        if cluster is not self._cluster:
            if cluster != self._cluster:
                line["cluster"] = cluster
            self._cluster = cluster
        if effects:
            line["effects"] = digest(effects)
        decisions = decisions_of(effects)
        if decisions:
            line["decisions"] = decisions
        assert self._segment is not None  # noqa: S101  begun above
        self._segment.tick(now_ms, line)

    def _begin_segment(self, state: ControllerState, cluster: Cluster, now_ms: int) -> None:
        private_folder(self._folder)
        self._make_room()
        if self._end is None:
            self._end = chain_end(self._folder, self._controller)
        if self._torn is not None:
            cut_file(*self._torn)
            self._torn = None
        segment = SegmentFile(self._folder, self._controller, self._keys, self._end, now_ms)
        self._segment, self._began_ms = segment, now_ms
        self._start(segment, state, cluster, now_ms)
        # The head also stands outside of the folder: in the controller's log and its status.
        head = self._end.last
        log.info(
            "decision log: %s begins with record %d, hash %s",
            segment.path.name, head.number, head.hash,
        )  # fmt: skip

    def _start(
        self, segment: SegmentFile, state: ControllerState, cluster: Cluster, now_ms: int
    ) -> None:
        """Write the whole state, from which a replay can begin."""
        body = {
            "version": _RELEASE,
            "controller": self._controller,
            "cluster": cluster,
            "state": state,
        }
        assert self._end is not None  # noqa: S101  set with the first segment
        lost, number = self.lost, self._end.last.number
        try:
            segment.start(now_ms, body, lost - self._recorded_lost)
        finally:
            if self._end.last.number > number:  # It may be written, and not yet on the disk.
                self._recorded_lost = lost
        self._observations, self._cluster, self._started_ms = ObservationWriter(), cluster, now_ms

    def _end_segment(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def _drop_segment(self) -> None:
        """Close a segment that could not be written. Its complete records stay."""
        segment, self._segment = self._segment, None
        if segment is not None:
            self._torn = segment.abandon() or self._torn

    def _make_room(self) -> None:
        """Remove the oldest segments until the others fit within the limit."""
        sizes: dict[Path, int] = {}
        for path in segment_paths(self._folder):
            with contextlib.suppress(FileNotFoundError):  # Another controller removed it.
                sizes[path] = path.stat().st_size
        total = sum(sizes.values())
        for path, size in sizes.items():
            if total <= self._most_bytes:
                return
            total -= size
            path.unlink(missing_ok=True)
