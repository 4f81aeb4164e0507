"""The disk of the controllers' decision logs: real files in a temporary folder, with faults.

The disk stands for `os` in the modules that write state and logs (`topics.storage`).
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from topics.storage import durable_files, private_files

_STEPS = ("open", "write", "fsync", "replace", "ftruncate", "truncate", "unlink")
_MOST_FREE = 20_000


class Disk:
    """A disk with faults. While it is full, it takes the bytes that are free, then writes and new
    files fail (ENOSPC). While it is broken, a third of the calls fail (EIO). A third of all writes
    take fewer bytes than asked for, as the system may do at any time. failed: number of failed
    calls."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._free: int | None = None
        self._broken = False
        self._patches = [mock.patch.object(m, "os", self) for m in (durable_files, private_files)]
        self.folder = Path(tempfile.mkdtemp(prefix="shoal-invariants-"))
        self.failed = 0

    def install(self) -> None:
        """Stand for the disk of this process from now on."""
        for patch in self._patches:
            patch.start()

    def remove_all(self) -> None:
        """End, and remove all files."""
        for patch in self._patches:
            patch.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def begin_fault(self, full: bool) -> None:
        """Begin a fault: the disk is full or broken."""
        if full:
            self._free = self._rng.randint(0, _MOST_FREE)
        else:
            self._broken = True

    def end_fault(self) -> None:
        """End the fault."""
        self._free, self._broken = None, False

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in _STEPS:
            return real
        if name == "fsync":
            real = lambda _: None  # noqa: E731  a simulation loses no power
        return lambda *args: self._call(name, real, *args)

    def _call(self, name: str, real: Callable[..., Any], *args: Any) -> Any:
        if self._broken and self._rng.random() < 0.3:
            self._refuse(errno.EIO)
        if self._free is not None and name == "open" and args[1] & os.O_CREAT and not self._free:
            self._refuse(errno.ENOSPC)
        if name != "write":
            return real(*args)
        data = bytes(args[1])
        if len(data) > 1 and self._rng.random() < 0.3:
            data = data[: self._rng.randint(1, len(data) - 1)]
        if self._free is not None:
            data = data[: self._free]
            if not data:
                self._refuse(errno.ENOSPC)
            self._free -= len(data)
        return real(args[0], data)

    def _refuse(self, number: int) -> None:
        self.failed += 1
        raise OSError(number, os.strerror(number))
