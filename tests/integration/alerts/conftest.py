"""Fixture with Debian's Prometheus for the tests of this folder."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

DEPLOY = Path("deploy/prometheus")


@pytest.fixture(scope="session")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prometheus packages of Debian, unpacked by the project's script.

    SHOAL_TEST_PROMETHEUS: folder for them.
    """
    kept = os.environ.get("SHOAL_TEST_PROMETHEUS")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("prometheus")
    done = subprocess.run([DEPLOY / "fetch.sh", folder], capture_output=True, timeout=60)
    if done.returncode:
        pytest.skip(f"Prometheus cannot be fetched: {done.stderr.decode()[-200:].strip()}")
    return folder / "usr" / "bin"
