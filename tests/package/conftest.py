"""Fixtures of the tests of packages (`make test-package`)."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy import release

REPOSITORY = "https://example.org/fleet/shoal"


@dataclass(frozen=True)
class Built:
    """Files of a release."""

    wheel: Path
    sdist: Path
    folder: Path


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("release")
    assert release.main(["--out", str(folder), "--repository", REPOSITORY]) == 0
    return Built(next(folder.glob("*.whl")), next(folder.glob("*.tar.gz")), folder)


@pytest.fixture(scope="session")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a new environment with the locked packages and the wheel."""
    if not os.environ.get("SHOAL_TEST_PACKAGE"):
        pytest.skip("installs an environment: make test-package")
    venv = tmp_path_factory.mktemp("environment") / "venv"
    uv = [sys.executable, "-m", "uv"]
    pip = [*uv, "pip", "install", "--quiet", "--no-deps", "--python", str(venv)]
    for command in (
        [*uv, "venv", "--quiet", "--python", sys.executable, str(venv)],
        [*pip, "--require-hashes", "-r", str(release.ROOT / "requirements.lock")],
        [*pip, str(built.wheel)],
    ):
        subprocess.run(command, check=True, timeout=600)
    # Kernels are compiled once. Then processes load them from disk.
    demo = next(venv.glob("lib/*/site-packages/streams/data/demo.yaml"))
    plan = ["plan", "--config", str(demo), "--no-explain", "--json"]
    subprocess.run([venv / "bin/shoal", *plan], check=True, timeout=600, stdout=subprocess.DEVNULL)
    return venv / "bin"
