"""Optional packages for tests, installed from their lock files if they are missing."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def ensure(module: str, lock: Path, variable: str, factory: pytest.TempPathFactory) -> Path | None:
    """Make `module` importable. The folder of its packages; None if it was installed before.

    variable: environment variable that names a folder to keep the packages in. The test is skipped
    if the packages cannot be fetched.
    """
    try:
        importlib.import_module(module)
        return None
    except ImportError:
        top = module.partition(".")[0]
        kept = os.environ.get(variable)
        folder = Path(kept) if kept else factory.mktemp(top)
    if not (folder / top).is_dir():
        installer = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps"]
        done = subprocess.run(
            [*installer, "--require-hashes", "--target", folder, "-r", lock],
            capture_output=True, timeout=100,
        )  # fmt: skip
        if done.returncode:
            pytest.skip(f"{top} cannot be fetched: {done.stderr.decode()[-200:].strip()}")
    # The last place, so that packages of both environments come from this one.
    sys.path.append(str(folder))
    importlib.invalidate_caches()
    return folder
