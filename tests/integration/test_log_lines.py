"""All processes log in one format (time, level, logger, message). Libraries log
only if configured.
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

PLANES = ("streams", "executors")
LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO|WARNING|ERROR) [\w.]+: .+")


def log_lines(plane: str, level: str) -> list[str]:
    """The stderr lines of a process with --log-level `level`."""
    code = (
        f"import logging; from topics.edge.logs import log_to_stderr; log_to_stderr({level!r})\n"
        "for name in (%r, 'library'):\n"
        "    for word in ('debug', 'info', 'warning', 'error'):\n"
        "        getattr(logging.getLogger(name), word)(f'{name} {word}')\n" % f"{plane}.part"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60.0
    )
    assert ran.stdout == ""
    return ran.stderr.splitlines()


@pytest.mark.parametrize("plane", PLANES)
def test_lines_have_utc_time_level_and_origin(plane: str) -> None:
    lines = log_lines(plane, "info")
    assert all(LINE.fullmatch(line) for line in lines)
    words = [line.split(": ", 1)[1] for line in lines]
    ours = [f"{plane}.part {word}" for word in ("info", "warning", "error")]
    assert words == [*ours, "library warning", "library error"]


@pytest.mark.parametrize("plane", PLANES)
def test_the_level_can_be_set(plane: str) -> None:
    assert [line.split()[-1] for line in log_lines(plane, "error")] == ["error", "error"]
    assert len(log_lines(plane, "debug")) == 8
