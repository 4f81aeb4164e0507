"""Facts about processes from /proc."""

from __future__ import annotations

from pathlib import Path

import pytest

from executors.node import procfs


def test_variables_of_a_replaced_or_ended_process_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(procfs, "_PROC", tmp_path)
    for pid, raw in ((1, b""), (2, b"KEY=a=b\0")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "environ").write_bytes(raw)
    assert procfs.environment_or_none(1) == {}
    assert procfs.environment_or_none(2) == {"KEY": "a=b"}
    assert procfs.environment_or_none(3) is None
    assert procfs.environment(3) == {}
