"""Child processes: their end, if a test started them with `start_new_session=True`, and their
modules."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path


def end(process: subprocess.Popen[bytes], limit_s: float = 10.0) -> None:
    """Terminate the process and wait. After `limit_s` real seconds, kill its process group."""
    process.terminate()
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def modules_of(parent: int) -> dict[str, int]:
    """Process ids of the children that run a module, by the last word of its name."""
    found = {}
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                words = (folder / "cmdline").read_bytes().decode().split("\0")
                module = words[3] if words[2].endswith(".start_part") else words[2]
                found[module.rpartition(".")[2]] = int(folder.name)
    return found
