"""The log files of engines: one for each start, limited in size."""

from __future__ import annotations

from pathlib import Path

from executors.node.engine_logs import MAX_BYTES, EngineLogs


def test_a_restart_keeps_the_logs_of_the_last_starts(
    tmp_path: Path,
) -> None:
    logs = EngineLogs(tmp_path / "logs")
    for launched_ms in range(1_000, 9_000, 1_000):
        logs.open_new("a", launched_ms).write_text(f"start {launched_ms}")
    logs.open_new("ab", 1).write_text("another one")
    texts = sorted(path.read_text() for path in logs.folder.iterdir())
    assert texts == ["another one", *(f"start {n}" for n in range(4_000, 9_000, 1_000))]


def test_all_instances_together_keep_a_bounded_number_of_files(tmp_path: Path) -> None:
    logs = EngineLogs(tmp_path)
    for number in range(130):
        logs.open_new(f"i{number}", number).touch()
    kept = {path.name.rpartition(".")[0].rpartition(".")[2] for path in tmp_path.iterdir()}
    assert len(kept) <= 101 and {"129", "128"} <= kept and "0" not in kept


def test_a_long_log_is_cut_to_its_end(tmp_path: Path) -> None:
    logs = EngineLogs(tmp_path)
    path = logs.open_new("a", 1)
    with path.open("ab") as engine:  # The engine still appends after the cut.
        engine.write(b"old " * (MAX_BYTES // 4 + 1) + b"the end")
        engine.flush()
        logs.truncate([path])
        assert path.stat().st_size == MAX_BYTES // 2
        engine.write(b", and on")
    assert path.read_bytes().endswith(b"the end, and on")
    logs.truncate([path, tmp_path / "gone"])
