"""What engines say: one file per start, bounded in size and in number.

Holds names, cutting and forgetting. A file belongs to one launch and is never written again by
another; a long-lived engine's file is cut in half when it grows too large, keeping its end.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from executors.private_files import private_folder

log = logging.getLogger(__name__)

MOST_BYTES = 8 * 1024 * 1024
_PER_INSTANCE = 5
_MOST_FILES = 100


@dataclass(slots=True)
class EngineLogs:
    """The files of one executor under `folder`."""

    folder: Path

    def path(self, instance: str, launched_ms: int) -> Path:
        """The file of a new start."""
        return self.folder / f"{file_name(instance)}.{launched_ms}.log"

    def open_new(self, instance: str, launched_ms: int) -> Path:
        """The file of a new start; makes room for it. Faults are the writer's to notice."""
        path = self.path(instance, launched_ms)
        try:
            private_folder(self.folder)
            self._forget(file_name(instance))
        except OSError as error:
            log.warning("%s: %s", self.folder, error)
        return path

    def cut(self, live: Collection[Path]) -> None:
        """Keep the files of living engines within their bound. They append, so their next line goes
        to the new end; what they write while we copy is lost."""
        for path in live:
            try:
                size = path.stat().st_size
                if size <= MOST_BYTES:
                    continue
                with path.open("r+b") as file:
                    file.seek(size - MOST_BYTES // 2)
                    kept = file.read(MOST_BYTES // 2)
                    file.seek(0)
                    file.write(kept)
                    file.truncate()
            except OSError as error:
                log.warning("%s: %s", path, error)

    def _forget(self, name: str) -> None:
        files = sorted(self.folder.glob("*.log"), key=lambda path: _started(path))
        same = [path for path in files if path.name.rpartition(".")[0].rpartition(".")[0] == name]
        old = same[: max(0, len(same) - _PER_INSTANCE + 1)]
        old += [path for path in files if path not in old][: max(0, len(files) - _MOST_FILES)]
        for path in old:
            path.unlink(missing_ok=True)


def file_name(identity: str) -> str:
    """A file name for an id, which may hold characters that a file name must not."""
    readable = "".join(c if c.isalnum() else "-" for c in identity)[:60]
    return f"{readable}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"


def _started(path: Path) -> int:
    tail = path.name.split(".")[-2] if path.name.count(".") >= 2 else ""
    return int(tail) if tail.isdigit() else 0
