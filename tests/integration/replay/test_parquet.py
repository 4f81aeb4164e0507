"""Traces in Parquet files, with the pyarrow that requirements-parquet.lock pins."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from streams.files.user_errors import UserError
from streams.tools.replay.traces import load_trace

ROOT = Path(__file__).resolve().parents[3]
LOCK = ROOT / "requirements-parquet.lock"


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The module pyarrow.parquet. It is installed from the lock if it is missing.

    SHOAL_TEST_PYARROW: folder for it.
    """
    try:
        return importlib.import_module("pyarrow.parquet")
    except ImportError:
        kept = os.environ.get("SHOAL_TEST_PYARROW")
        folder = Path(kept) if kept else tmp_path_factory.mktemp("pyarrow")
    if not (folder / "pyarrow").is_dir():
        installer = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps"]
        done = subprocess.run(
            [*installer, "--require-hashes", "--target", folder, "-r", LOCK],
            capture_output=True, timeout=100,
        )  # fmt: skip
        if done.returncode:
            pytest.skip(f"pyarrow cannot be fetched: {done.stderr.decode()[-200:].strip()}")
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    return importlib.import_module("pyarrow.parquet")


def written(parquet: Any, path: Path, columns: dict[str, list[Any]]) -> Path:
    parquet.write_table(importlib.import_module("pyarrow").table(columns), path)
    return path


def test_a_trace_is_read(parquet: Any, tmp_path: Path) -> None:
    columns = {"timestamp_ms": [0, 1500], "input_tokens": [1, 2], "output_tokens": [3, 4]}
    trace = load_trace(written(parquet, tmp_path / "trace.parquet", columns))
    assert list(trace.arrivals_ms) == [0.0, 1500.0]
    assert (list(trace.input_tokens), list(trace.output_tokens)) == ([1, 2], [3, 4])


def test_a_damaged_file_is_one_line(parquet: Any, tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    path.write_bytes(b"PAR1....")
    with pytest.raises(UserError, match="not a Parquet file that can be read") as said:
        load_trace(path)
    assert "\n" not in str(said.value)


def test_the_lock_pins_what_the_extra_allows() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (wanted,) = extras["optional-dependencies"]["parquet"]
    assert f"echo '{wanted}' | $(COMPILE) - -o {LOCK.name}" in (ROOT / "Makefile").read_text()
    pins = re.findall(r"^(\S+)==(\d+)", LOCK.read_text(), re.MULTILINE)
    assert [name for name, _ in pins] == ["pyarrow"] and int(pins[0][1]) >= 15
