"""Programs for tests, unpacked by a script of the project."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

import pytest


def fetched(
    script: Path, variable: str, name: str, factory: pytest.TempPathFactory
) -> tuple[Path, subprocess.CompletedProcess[bytes]]:
    """The folder `name` that `script` fills, and the result of the script.

    variable: environment variable that names another folder, which is kept. The processes of one
    test run share the folder.
    """
    root = factory.getbasetemp()
    shared = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    folder = Path(os.environ.get(variable) or shared / name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return folder, subprocess.run([script, folder], capture_output=True, timeout=110)
