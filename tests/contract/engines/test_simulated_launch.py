"""Launches that a simulated engine refuses before it serves."""

from __future__ import annotations

import subprocess
import sys


def test_what_cannot_be_served_is_said_in_one_line() -> None:
    """For weights that do not fit and for an unknown GPU the engine exits with code 2 and states
    the reason."""
    for option, said in (("--gpu=H1OO", "H100"), ("--source=meta-llama/Llama-3.1-70B", "weights")):
        argv = [
            sys.executable, "-m", "executors.engines.simulated", "--model=m",
            "--source=meta-llama/Llama-3.1-8B", "--gpu=L4", "--gpus=1", "--port=1",
            "--max-len=100", option,
        ]  # fmt: skip
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20)
        assert done.returncode == 2
        assert said in done.stderr
        assert done.stderr.count("\n") == 1
