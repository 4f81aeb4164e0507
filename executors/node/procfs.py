"""What /proc tells of processes: when they started, who belongs together, whose they are.

Holds reading only. A process is named by its pid and its start time; a zombie counts as gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_GROUP, _START = 2, 19  # fields 5 and 22 of stat, counted behind the name


@dataclass(frozen=True, slots=True)
class Process:
    """A living process. started: kernel ticks since boot."""

    pid: int
    group: int
    started: int


def look(pid: int) -> Process | None:
    """The process `pid`; None when there is none, or only what is left to reap."""
    try:
        stat = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # The name in parentheses may hold spaces and parentheses; the fields come after it.
    fields = stat.rpartition(b")")[2].split()
    if fields[0] in (b"Z", b"X"):
        return None
    return Process(pid, int(fields[_GROUP]), int(fields[_START]))


def everyone() -> Iterator[Process]:
    """Every living process of this machine that can be seen."""
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            found = look(int(entry.name))
            if found is not None:
                yield found


def environment(pid: int) -> dict[str, str]:
    """The variables that `pid` was started with; none where that may not be read."""
    return environment_now(pid) or {}


def environment_now(pid: int) -> dict[str, str] | None:
    """The same; None where that may not be read, empty while one program becomes another (exec)."""
    try:
        raw = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return None
    pairs = (item.partition(b"=") for item in raw.split(b"\0") if b"=" in item)
    return {key.decode(errors="replace"): value.decode(errors="replace") for key, _, value in pairs}


def boot_id() -> str:
    """Names this boot of the machine: start times of another boot mean nothing."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
