"""`make` shows the progress of the environment and ends on Ctrl-C without an
error or a traceback.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.environment import PipProgress, pinned
from tests.hang_limit import HANG_S

ROOT = Path(__file__).resolve().parents[2]
ENDLESS = """
import sys
from pathlib import Path
from deploy import environment
child = "import time; print('begun', flush=True); time.sleep(60)"
def make(venv, dev):
    tell = lambda line: print(line.strip(), flush=True)
    environment.run([sys.executable, "-c", child], Path(sys.argv[1], "log"), tell)
environment.make = make
sys.exit(environment.main())
"""


def test_ctrl_c_during_the_installation_gives_one_clear_line(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ENDLESS, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == "interrupted; the next call goes on from here\n"
        assert process.wait(HANG_S) == 130


def test_a_failed_step_shows_its_output(tmp_path: Path) -> None:
    from deploy.environment import run

    log = tmp_path / "log"
    with pytest.raises(SystemExit, match=r"no such package\nfailed with code 3"):
        run([sys.executable, "-c", "print('no such package'); exit(3)"], log)
    assert log.read_text() == "no such package\n"


def test_progress_counts_packages_and_megabytes() -> None:
    count = PipProgress(2)
    said = [
        count.read(line)
        for line in (
            "Collecting aiohttp==3.14.5 (from -r requirements.lock (line 7))",
            "  Downloading aiohttp-3.14.5-cp311-cp311-linux_x86_64.whl (1.8 MB)",
            "Collecting idna==3.11 (from -r requirements.lock (line 9))",
            "  Using cached idna-3.11-py3-none-any.whl (200 kB)",
            "Installing collected packages: idna, aiohttp",
        )
    ]
    assert said == [
        "1 of 2 packages, 0 MB",
        "1 of 2 packages, 2 MB",
        "2 of 2 packages, 2 MB",
        "2 of 2 packages, 2 MB",
        "unpacking 2 packages, 2 MB downloaded",
    ]
    assert pinned(ROOT / "requirements.lock") > 20


@pytest.mark.parametrize(
    ("code", "ended", "said"), [(130, -signal.SIGINT, False), (1, 2, True), (0, 0, False)]
)
def test_make_run_ends_by_the_same_signal_as_shoal(
    tmp_path: Path, code: int, ended: int, said: bool
) -> None:
    """After Ctrl-C there is no `*** Error 130`. Other errors stay errors."""
    (tmp_path / "bin").mkdir()
    shoal = tmp_path / "bin" / "shoal"
    shoal.write_text(f"#!/bin/bash\nexit {code}\n")
    shoal.chmod(0o755)
    (tmp_path / ".base").touch()
    ran = subprocess.run(
        ["make", "--no-print-directory", "run", f"VENV={tmp_path}"],
        cwd=ROOT,
        env={**os.environ, "MAKEFLAGS": ""},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert ran.returncode == ended
    assert ("***" in ran.stderr) == said
