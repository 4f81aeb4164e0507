"""Telemetry on disk while the broker is away, across restarts of the gateway.

Owns the files: segments of whole records, the oldest dropped when all of them together would take
more than their bound. Blocking; whoever calls keeps it off the event loop. A record is named for
ever by gateway, boot and sequence, so one that is sent twice does no harm.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from executors.private_files import open_private, private_folder
from topics.checks import InvalidRecord
from topics.codec import decode, encode
from topics.records import Telemetry

log = logging.getLogger(__name__)

_SEGMENT_BYTES = 4 * 1024 * 1024


class Spool:
    """Records in `folder`, at most about `limit_bytes`. Counters: `dropped` (segments' records lost
    to the bound or unreadable)."""

    def __init__(self, folder: Path, limit_bytes: int = 64 * 1024 * 1024) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._segment_bytes = min(_SEGMENT_BYTES, max(1, limit_bytes // 4))
        self.dropped = 0

    def segments(self) -> list[Path]:
        """Files with records, the oldest first."""
        return sorted(self._folder.glob("telemetry-*.jsonl"))

    def keep(self, records: Sequence[Telemetry]) -> None:
        """Append `records`; OSError if the disk does not take them."""
        if not records:
            return
        private_folder(self._folder)
        found = self.segments()
        last = found[-1] if found else None
        if last is None or last.stat().st_size >= self._segment_bytes:
            number = int(last.stem.rpartition("-")[2]) + 1 if last is not None else 1
            last = self._folder / f"telemetry-{number:09d}.jsonl"
        lines = b"".join(encode(record) + b"\n" for record in records)
        with open_private(last, "a+b") as file:
            if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
                lines = b"\n" + lines  # the write before was cut off, by a full disk or our end
            file.write(lines)
        found = self.segments()
        while len(found) > 1 and sum(path.stat().st_size for path in found) > self._limit_bytes:
            oldest = found.pop(0)
            self.dropped += oldest.read_bytes().count(b"\n")
            oldest.unlink()

    def oldest(self) -> tuple[Path, list[Telemetry]] | None:
        """The oldest segment and its records, None where nothing is kept."""
        for path in self.segments():
            records = []
            for line in path.read_bytes().splitlines():
                try:
                    records.append(decode("telemetry", line))
                except InvalidRecord as error:  # the end of a write that was cut off
                    self.dropped += 1
                    log.warning("%s: a record was lost: %s", path, error)
            if records:
                return path, records
            path.unlink()
        return None

    def sent(self, segment: Path) -> None:
        """The records of `segment` are with the broker."""
        segment.unlink(missing_ok=True)
