"""Stores telemetry on disk while the broker is away, across restarts of the gateway. Files are
segments of whole records; the oldest segment is deleted if all segments together exceed the size
limit. The functions block, so callers run them outside the event loop. Sending a record twice is
harmless, because gateway, boot and sequence identify it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from topics.checks import InvalidValue
from topics.codec import decode, encode
from topics.records import Telemetry
from topics.storage.checked_lines import checked_line, read_lines
from topics.storage.durable_files import AppendFile
from topics.storage.private_files import private_folder

log = logging.getLogger(__name__)

_SEGMENT_BYTES = 4 * 1024 * 1024


class TelemetrySpool:
    """Records in `folder`, of at most about `limit_bytes`. dropped: records that were unreadable or
    exceeded this limit."""

    def __init__(self, folder: Path, limit_bytes: int = 64 * 1024 * 1024) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._segment_bytes = min(_SEGMENT_BYTES, max(1, limit_bytes // 4))
        self.dropped = 0

    def segments(self) -> list[Path]:
        """Files with records, the oldest first."""
        return sorted(self._folder.glob("telemetry-*.jsonl"))

    def append(self, records: Sequence[Telemetry]) -> None:
        """Append `records`. Raises OSError if they cannot be written."""
        if not records:
            return
        private_folder(self._folder)
        segments = self.segments()
        last = segments[-1] if segments else None
        if last is None or last.stat().st_size >= self._segment_bytes:
            number = int(last.stem.rpartition("-")[2]) + 1 if last is not None else 1
            last = self._folder / f"telemetry-{number:09d}.jsonl"
        lines = b"".join(checked_line(encode(record)) for record in records)
        file = AppendFile.open(last)
        try:
            if file.last_byte() not in (b"", b"\n"):
                lines = b"\n" + lines  # the process was killed during the previous write
            file.append(lines)
            file.sync()
        finally:
            file.close()
        segments = self.segments()
        while (
            len(segments) > 1 and sum(path.stat().st_size for path in segments) > self._limit_bytes
        ):
            oldest = segments.pop(0)
            self.dropped += sum(1 for _ in read_lines(oldest))
            oldest.unlink()

    def oldest(self) -> tuple[Path, list[Telemetry]] | None:
        """The oldest segment and its records; None if there is no segment."""
        for path in self.segments():
            records, damaged = [], 0
            for text in read_lines(path, self._segment_bytes):
                try:
                    if text is not None:
                        records.append(decode("telemetry", text))
                        continue
                except InvalidValue as error:
                    log.warning("%s: %s", path, error)
                damaged += 1
            if damaged:
                self.dropped += damaged
                log.warning("%s: %d damaged records are skipped", path, damaged)
            if records:
                return path, records
            path.unlink()
        return None

    def remove(self, segment: Path) -> None:
        """Delete `segment` after its records were sent."""
        segment.unlink(missing_ok=True)
