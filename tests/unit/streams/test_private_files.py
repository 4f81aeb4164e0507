"""State and log files are private to the user of the process, whatever the umask is."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from executors.engines.engine_protocol import LaunchLine
from executors.gateway.model_meter import ModelMeter
from executors.gateway.route_table import _replace
from executors.gateway.telemetry_spool import TelemetrySpool
from executors.node import os_processes
from executors.node.engine_environment import LaunchTag
from executors.node.engine_logs import EngineLogs
from executors.node.node_state import NodeState
from executors.node.state_store import StateStore
from streams.tools.up.child_processes import Child, Children
from tests.unit.decide.decide_catalogue import service
from tests.unit.decide.decide_world import world
from tests.unit.decision_log.recorded_worlds import record
from topics.fleet import DesiredInstance
from topics.storage.durable_files import AppendFile, replace_file
from topics.storage.private_files import open_private, private_folder


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_new_files_are_private_and_existing_files_become_private(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    private_folder(folder)
    assert mode(folder) == 0o700
    old = folder / "old"
    old.write_bytes(b"1")
    assert mode(old) == 0o666
    with open_private(old, "ab") as file:
        file.write(b"2")
    replace_file(folder / "new", b"3")
    AppendFile.create(folder / "log").close()
    assert old.read_bytes() == b"12"
    assert [mode(folder / name) for name in ("old", "new", "log")] == [0o600] * 3


def test_a_shared_folder_keeps_its_mode_and_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Other programs may use the folder too, for example /tmp."""
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    for _ in range(3):
        private_folder(shared)
    assert mode(shared) == 0o755
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "chmod 700" in caplog.text


def all_private(folder: Path) -> bool:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return mode(folder) == 0o700 and all(mode(path) == 0o600 for path in files)


def test_executor_state_and_engine_logs_are_private(tmp_path: Path) -> None:
    store = StateStore(tmp_path / "state")
    store.open()
    assert store.save(NodeState("n0", "p"), {})
    assert all_private(tmp_path / "state")
    logs = EngineLogs(tmp_path / "logs")
    desired = DesiredInstance("i", "m", "aggregated", "g", (0,))
    path = logs.open_new("i", 1)
    tag = LaunchTag("launch", "n0", desired, (1,), 1)
    engine = os_processes.start_engine(LaunchLine(("true",)), tag, {}, str(tmp_path), path)
    assert engine.child is not None
    engine.child.wait()
    assert all_private(tmp_path / "logs")


def test_gateway_routes_and_telemetry_are_private(tmp_path: Path) -> None:
    _replace(tmp_path / "state" / "routes.jsonl", b"{}")
    TelemetrySpool(tmp_path / "spool").append(
        [ModelMeter().report("chat", "g", "boot", 1, 1000, 1000, 1)]
    )
    assert all_private(tmp_path / "state") and all_private(tmp_path / "spool")


def test_the_decision_log_is_private(tmp_path: Path) -> None:
    record(world(lambda model, t: 1.0, service("chat")), tmp_path / "log", 3)
    assert all_private(tmp_path / "log")


async def test_the_logs_of_a_run_are_private(tmp_path: Path) -> None:
    children = Children()
    children.open()
    child = Child("a", ["true"], tmp_path / "a.log", restart=False)
    try:
        await children._spawn(child)
        assert child.process is not None
        await child.process.wait()
    finally:
        await children.close()
    assert mode(tmp_path / "a.log") == 0o600
