"""Processes as /proc shows them: start time, process group and environment.

A process is identified by its pid and start time; a zombie counts as gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_GROUP, _START = 2, 19  # fields 5 and 22 of stat, as indices after the name


@dataclass(frozen=True, slots=True)
class Process:
    """A living process. group: its process group. started: kernel ticks since boot."""

    pid: int
    group: int
    started: int


def find_process(pid: int) -> Process | None:
    """The process `pid`; None if it does not exist or is a zombie."""
    try:
        stat = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # The name in parentheses may contain spaces and parentheses; the fields follow it.
    fields = stat.rpartition(b")")[2].split()
    if fields[0] in (b"Z", b"X"):
        return None
    return Process(pid, int(fields[_GROUP]), int(fields[_START]))


def starved_s(pid: int) -> float:
    """Seconds since its start that the main thread of `pid` could have run and had no processor; 0
    if the kernel does not count them."""
    try:
        return int((_PROC / str(pid) / "schedstat").read_bytes().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def all_processes() -> Iterator[Process]:
    """All living processes that are visible on this machine."""
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            found = find_process(int(entry.name))
            if found is not None:
                yield found


def environment(pid: int) -> dict[str, str]:
    """The variables that `pid` was started with; empty if /proc does not allow reading them."""
    return environment_or_none(pid) or {}


def environment_or_none(pid: int) -> dict[str, str] | None:
    """The variables that `pid` was started with; None if /proc does not allow reading them, empty
    during an exec."""
    try:
        raw = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return None
    pairs = (item.partition(b"=") for item in raw.split(b"\0") if b"=" in item)
    return {key.decode(errors="replace"): value.decode(errors="replace") for key, _, value in pairs}


def boot_id() -> str:
    """The id of this boot of the machine; process start times are comparable only within one
    boot."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
