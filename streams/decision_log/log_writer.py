"""Write the decision log: in a thread, in segments, within a bounded size.

A tick queues its values and continues at once. Ticks that cannot be written are counted and logged;
the controller continues. Every segment begins with the whole state, so that a replay can begin at
any segment. After an error a new segment begins.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import queue
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from autoscaler.decide import ControllerState
from autoscaler.domain.cluster import Cluster
from storage.private_files import open_private, private_folder
from streams.controller.tick_loop import TickResult
from streams.decision_log.log_entries import FORM, decisions_of, digest
from streams.decision_log.observation_diff import ObservationWriter
from topics.codec import write_value

log = logging.getLogger(__name__)

SUFFIX = ".jsonl.gz"
SEGMENT_S = 600
_MOST_WAITING = 120
_RETRY_S = 30.0
_PLAIN = ":@+"  # not quoted, because file names may contain them


class DecisionLog:
    """A log in `folder`, with at most `most_bytes` over all its segments.

    `lost` counts ticks that were not written. `start` only starts the thread; the first tick
    creates the folder. Each segment covers `segment_s` domain seconds.
    """

    def __init__(
        self,
        folder: Path,
        controller: str,
        most_bytes: int = 1 << 30,
        segment_s: int = SEGMENT_S,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._controller = controller
        self._most_bytes = most_bytes
        self._segment_ms = segment_s * 1000
        self._monotonic_s = monotonic_s
        self._waiting: queue.Queue[TickResult | None] = queue.Queue(_MOST_WAITING)
        self._thread = threading.Thread(target=self._run, name="decision-log", daemon=True)
        self._file: BinaryIO | None = None
        self._packer: Any = None
        self._observations = ObservationWriter()
        self._cluster: Cluster | None = None
        self._after: ControllerState | None = None
        self._began_ms = 0
        self._retry_at_s = 0.0
        self._broken = threading.Event()
        self.lost = 0

    def start(self) -> None:
        """Start the writer thread."""
        self._thread.start()

    def tick(self, done: TickResult) -> None:
        """Queue one tick."""
        try:
            self._waiting.put_nowait(done)
        except queue.Full:
            self.lost += 1
            self._broken.set()

    def close(self, within_s: float = 2.0) -> None:
        """Write pending ticks and stop, within at most `within_s` real seconds."""
        try:
            self._waiting.put(None, timeout=within_s)
        except queue.Full:
            return
        self._thread.join(within_s)

    def _run(self) -> None:
        while (done := self._waiting.get()) is not None:
            try:
                self._write(done)
            except Exception as error:  # This is a disk error, or a value without a JSON form.
                self.lost += 1
                self._broken.set()
                self._retry_at_s = self._monotonic_s() + _RETRY_S
                log.error("decision log: %s; decisions continue without it", error)
        try:
            self._end_segment()
        except OSError as error:
            log.error("decision log: %s", error)

    def _write(self, done: TickResult) -> None:
        cluster, now_ms, effects = done.cluster, done.now_ms, done.effects
        if self._broken.is_set():
            if self._monotonic_s() < self._retry_at_s:
                self.lost += 1
                return
            self._broken.clear()
            self._drop_segment()
        elsewhere = done.before is not self._after  # For example, this controller began to lead.
        if self._file is not None and (elsewhere or now_ms - self._began_ms >= self._segment_ms):
            self._end_segment()
        self._after = done.after
        if self._file is None:
            self._begin_segment(done.before, cluster, now_ms)
        line: dict[str, Any] = {
            "now_ms": now_ms,
            "seen": self._observations.write(done.observation),
        }
        if cluster is not self._cluster:
            if cluster != self._cluster:
                line["cluster"] = cluster
            self._cluster = cluster
        if effects:
            line["effects"] = digest(effects)
        decisions = decisions_of(effects)
        if decisions:
            line["decisions"] = decisions
        self._put(line)

    def _begin_segment(self, state: ControllerState, cluster: Cluster, now_ms: int) -> None:
        private_folder(self._folder)
        self._make_room()
        path = self._folder / f"{now_ms}-{quote(self._controller, _PLAIN)}{SUFFIX}"
        self._file = open_private(path, "wb")
        self._packer = zlib.compressobj(6, zlib.DEFLATED, 31)
        self._observations = ObservationWriter()
        self._cluster = cluster
        self._began_ms = now_ms
        self._put(
            {
                "form": FORM,
                "version": importlib.metadata.version("shoal"),
                "controller": self._controller,
                "at_ms": now_ms,
                "cluster": cluster,
                "state": state,
            }
        )

    def _put(self, line: dict[str, Any]) -> None:
        # Flush every line, because the last observation before a crash is the most important one.
        assert self._file is not None  # noqa: S101  a segment was begun
        data = self._packer.compress(write_value(line) + b"\n")
        self._file.write(data + self._packer.flush(zlib.Z_SYNC_FLUSH))
        self._file.flush()

    def _end_segment(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            with file:
                file.write(self._packer.flush(zlib.Z_FINISH))

    def _drop_segment(self) -> None:
        """Abandon a segment that could not be written. Its file stays."""
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError:
                log.debug("decision log: a broken segment could not be closed")

    def _make_room(self) -> None:
        """Remove the oldest segments until the others fit within the limit."""
        sizes: dict[Path, int] = {}
        for path in sorted(self._folder.glob(f"*{SUFFIX}"), key=started_ms):
            with contextlib.suppress(FileNotFoundError):  # Another controller removed it.
                sizes[path] = path.stat().st_size
        total = sum(sizes.values())
        for path, size in sizes.items():
            if total <= self._most_bytes:
                return
            total -= size
            path.unlink(missing_ok=True)


def started_ms(path: Path) -> int:
    """Start time of the segment in `path`, from its file name; 0 if the name has none."""
    head = path.name.split("-", 1)[0]
    return int(head) if head.isascii() and head.isdigit() else 0
