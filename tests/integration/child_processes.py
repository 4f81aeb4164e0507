"""The end of processes that a test started with `start_new_session=True`."""

from __future__ import annotations

import os
import signal
import subprocess


def end(process: subprocess.Popen[bytes], limit_s: float = 10.0) -> None:
    """Terminate the process and wait. After `limit_s` real seconds, kill its process group."""
    process.terminate()
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
