"""Ctrl-C interrupts the main process but not its worker processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
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


def test_ctrl_c_interrupts_the_main_process_but_not_its_workers() -> None:
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


TERMINATED = """
import tempfile, time
from streams.cli.interrupts import sigterm_unwinds
with sigterm_unwinds(), tempfile.TemporaryDirectory() as folder:
    print(folder, flush=True)
    time.sleep(60.0)
"""


def test_sigterm_removes_temporary_folders() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TERMINATED],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        assert folder.is_dir()
        process.terminate()
        _, err = process.communicate(timeout=60.0)
    assert (process.returncode, err) == (143, "")
    assert not folder.exists()


@pytest.mark.parametrize("after_s", [0.0, 0.005, 0.02, 0.05])
@pytest.mark.parametrize(
    "argv",
    [
        ["-m", "streams.cli.entry", "up", "--for", "0"],
        ["deploy/environment.py", "VENV"],
    ],
    ids=["shoal up", "the environment"],
)
def test_ctrl_c_while_python_itself_starts_shows_no_traceback(
    argv: list[str], after_s: float, tmp_path: Path
) -> None:
    """SIGINT stays blocked until the process can handle it. `make run` starts processes in this
    way.
    """
    argv = [str(tmp_path / "venv") if word == "VENV" else word for word in argv]
    held = ["env", "--block-signal=INT", sys.executable, *argv]
    with subprocess.Popen(held, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        time.sleep(after_s)  # Real processes, because an interpreter has no virtual clock.
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60.0)
    assert "Traceback" not in err
    assert "KeyboardInterrupt" not in err
    # The signal may end env itself before env blocks it.
    assert process.returncode in (130, -signal.SIGINT) or "cannot" in err or "error" in err
