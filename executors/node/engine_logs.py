"""Log files of engines: one file per start, bounded in size and in number.

A file belongs to one launch and is never reused. When the file of a long-running engine grows too
large, its older half is dropped.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from topics.storage.private_files import private_folder

log = logging.getLogger(__name__)

MAX_BYTES = 8 * 1024 * 1024
_PER_INSTANCE = 5
_MAX_FILES = 100


@dataclass(slots=True)
class EngineLogs:
    """The log files of one executor, in `folder`."""

    folder: Path

    def path(self, instance: str, launched_ms: int) -> Path:
        """The log file of one launch."""
        return self.folder / f"{file_name(instance)}.{launched_ms}.log"

    def open_new(self, instance: str, launched_ms: int) -> Path:
        """Choose the log file of a new launch, and delete old files to make room. I/O errors are
        only logged, because opening the file will raise them again.
        """
        path = self.path(instance, launched_ms)
        try:
            private_folder(self.folder)
            self._delete_old(file_name(instance))
        except OSError as error:
            log.warning("%s: %s", self.folder, error)
        return path

    def truncate(self, live: Collection[Path]) -> None:
        """Truncate the files of running engines that exceed MAX_BYTES.

        Engines append, so they continue at the new end. Lines that are written during the
        truncation are lost.
        """
        for path in live:
            try:
                size = path.stat().st_size
                if size <= MAX_BYTES:
                    continue
                with path.open("r+b") as file:
                    file.seek(size - MAX_BYTES // 2)
                    kept = file.read(MAX_BYTES // 2)
                    file.seek(0)
                    file.write(kept)
                    file.truncate()
            except OSError as error:
                log.warning("%s: %s", path, error)

    def _delete_old(self, name: str) -> None:
        files = sorted(self.folder.glob("*.log"), key=lambda path: _start_ms(path))
        same = [path for path in files if path.name.rpartition(".")[0].rpartition(".")[0] == name]
        old = same[: max(0, len(same) - _PER_INSTANCE + 1)]
        old += [path for path in files if path not in old][: max(0, len(files) - _MAX_FILES)]
        for path in old:
            path.unlink(missing_ok=True)


def file_name(identity: str) -> str:
    """A safe file name for an id that may hold other characters."""
    readable = "".join(c if c.isalnum() else "-" for c in identity)[:60]
    return f"{readable}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"


def _start_ms(path: Path) -> int:
    tail = path.name.split(".")[-2] if path.name.count(".") >= 2 else ""
    return int(tail) if tail.isdigit() else 0
