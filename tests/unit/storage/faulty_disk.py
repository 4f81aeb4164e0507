"""A disk that fails: replaces the functions of `os` by which `storage` writes."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any
from unittest import mock

from topics.storage import durable_files, private_files

STEPS = ("open", "write", "fsync", "replace", "ftruncate", "truncate", "unlink", "close")
"""The counted calls. `open` counts only if it may create a file."""


class Killed(BaseException):
    """The process was killed: nothing after this call happens."""


class Fault(StrEnum):
    """A fault of a step. FULL, BROKEN: the call fails with ENOSPC or EIO, and a write may take
    some bytes before. SHORT: a write takes fewer bytes than asked for and reports it. KILLED: the
    process ends after a part of the write, or before any other call."""

    FULL = "full"
    BROKEN = "broken"
    SHORT = "short"
    KILLED = "killed"


class FaultyDisk:
    """Stands for `os` in `storage`. fault: at the counted calls from `first` to `last`.

    calls: number of counted calls so far, of the kinds in `steps`. failed: those with the fault.
    """

    def __init__(
        self,
        fault: Fault,
        first: int,
        last: int | None = None,
        steps: tuple[str, ...] = STEPS,
        seed: int = 0,
    ) -> None:
        self._fault = fault
        self._first, self._last = first, first if last is None else last
        self._steps = steps
        self._random = random.Random(seed)
        self._dead = False
        self.calls = 0
        self.failed = 0

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name) if name != "fsync" else lambda _: None
        if name not in STEPS:
            return real
        return lambda *args: self._call(name, real, *args)

    def _call(self, name: str, real: Callable[..., Any], *args: Any) -> Any:
        if self._dead:
            raise Killed
        if name not in self._steps or (name == "open" and not args[1] & os.O_CREAT):
            return real(*args)
        self.calls += 1
        if not self._first <= self.calls <= self._last:
            return real(*args)
        if name == "close":
            if self._fault is not Fault.KILLED:
                return real(*args)  # a failed close is reported by fsync before it
        elif self._fault is Fault.SHORT:
            if name != "write":
                return real(*args)
            self.failed += 1
            return real(args[0], bytes(args[1])[: self._random.randint(1, len(args[1]))])
        elif name == "write":
            real(args[0], bytes(args[1])[: self._random.randint(0, len(args[1]) - 1)])
        self.failed += 1
        if self._fault is Fault.KILLED:
            self._dead = True
            raise Killed
        number = errno.ENOSPC if self._fault is Fault.FULL else errno.EIO
        raise OSError(number, os.strerror(number))


@contextmanager
def disk(faulty: FaultyDisk) -> Iterator[FaultyDisk]:
    """`storage` writes to `faulty`."""
    with (
        mock.patch.object(durable_files, "os", faulty),
        mock.patch.object(private_files, "os", faulty),
    ):
        yield faulty
