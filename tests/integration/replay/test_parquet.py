"""Traces in Parquet files, with the pyarrow that requirements-parquet.lock pins."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from streams.files.user_errors import UserError
from streams.tools.replay.traces import load_trace
from tests.integration.locked_packages import ROOT, ensure

LOCK = ROOT / "requirements-parquet.lock"


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The module pyarrow.parquet. It is installed from the lock if it is missing.

    SHOAL_TEST_PYARROW: folder for it.
    """
    ensure("pyarrow.parquet", LOCK, "SHOAL_TEST_PYARROW", tmp_path_factory)
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
