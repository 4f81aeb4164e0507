"""Launches that a simulated engine refuses before it serves."""

from __future__ import annotations

import subprocess
import sys


def test_an_impossible_launch_is_refused_in_one_line() -> None:
    """The weights do not fit, or the GPU is unknown. The engine exits with code 2 and states the
    reason.
    """
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
