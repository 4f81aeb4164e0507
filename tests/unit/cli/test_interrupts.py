"""Ctrl-C with worker processes: they are spared it, we are not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

PROGRAM = """
import subprocess, sys, time
from streams.cli.interrupts import workers_spared
try:
    with workers_spared():
        worker = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        print("begun", flush=True)
        for _ in range(2000):
            time.sleep(0.01)
except KeyboardInterrupt:
    worker.communicate(b"go\\n", timeout=20.0)
    print("interrupted, worker", worker.returncode, flush=True)
"""


def test_ctrl_c_reaches_us_and_not_the_workers() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60.0)
    assert (out, err) == ("interrupted, worker 0\n", "")
