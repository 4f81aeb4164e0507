"""Fixture with Debian's Prometheus for the tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.fetched_folder import fetched

DEPLOY = Path("deploy/prometheus")


@pytest.fixture(scope="session")
def binaries() -> Path:
    """Prometheus packages of Debian, unpacked by the project's script.

    SHOAL_TEST_PROMETHEUS: folder for them.
    """
    folder, done = fetched(DEPLOY / "fetch.sh", "SHOAL_TEST_PROMETHEUS", "prometheus")
    if done.returncode:
        pytest.skip(f"Prometheus cannot be fetched: {done.stderr.decode()[-200:].strip()}")
    return folder / "usr" / "bin"
