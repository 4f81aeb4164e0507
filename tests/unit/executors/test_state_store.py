"""The state file of a node: written whole, restored as it was, and refused if it is damaged."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from executors.node import procfs
from executors.node.node_state import InstanceRecord, NodeState
from executors.node.os_processes import EngineProcess
from executors.node.state_store import RecordedProcess, StateStore
from topics.fleet import Assignment, DesiredInstance, InstanceState
from topics.storage.checked_lines import checked_line, text_of

POOL = "r/p/owned"
EMPTY = NodeState("n0", POOL)
WISH = DesiredInstance("a", "chat", "decode", "g", (0, 1))
ITEM = InstanceRecord(
    WISH, InstanceState.SWITCHING, since_ms=11, phase="prefill", has_process=True, was_ready=True,
    endpoint="h:1", ports=(1, 2), launched_ms=12, restarts=3, failures=4, retry_ms=15, drain_ms=16,
    terminated_ms=17, killed_ms=18, switch_ms=19, from_phase="prefill", refused_phase="decode",
    sleep_ms=20, in_flight=21, held_kv=22, finished=23, reason="why",
)  # fmt: skip
IDLE = InstanceRecord(replace(WISH, instance="b"), InstanceState.STARTING, since_ms=1)
STATE = NodeState(
    "n0", POOL, Assignment("n0", POOL, 7, 8, 9, (WISH,)), (ITEM, IDLE), {"generation": 2}, 99
)
ENGINE = EngineProcess(41, 42, "l1", "", Path())


def store(folder: Path) -> StateStore:
    made = StateStore(folder)
    made.open()
    made.close()
    return made


def rewritten(one: StateStore, **changes: Any) -> None:
    """Change values of the state file, with a right checksum."""
    path = one.path("n0")
    value = orjson.loads(text_of(path.read_bytes().removesuffix(b"\n")) or b"")
    path.write_bytes(checked_line(orjson.dumps({**value, **changes})))


def test_a_state_is_restored_as_it_was(tmp_path: Path) -> None:
    """Except memory of the present process: health and the time without a processor."""
    one = store(tmp_path)
    lively = replace(ITEM, unhealthy_since_ms=5, starved_ms=6)
    assert one.save(replace(STATE, instances=(lively, IDLE)), {"a": ENGINE})
    found, recorded = store(tmp_path).restore(EMPTY)
    assert found == STATE
    assert recorded == {"a": RecordedProcess(41, 42, "l1")}


def test_nodes_have_files_of_their_own(tmp_path: Path) -> None:
    one = store(tmp_path)
    assert one.save(STATE, {}) and one.save(NodeState("n1", POOL), {})
    assert one.restore(EMPTY) == (STATE, {})
    assert one.restore(NodeState("n2", POOL)) == (NodeState("n2", POOL), {})
    assert one.path("a/b") != one.path("a-b") and one.path("a/b").parent == tmp_path


def test_no_process_is_adopted_after_a_reboot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = store(tmp_path)
    one.save(STATE, {"a": ENGINE})
    monkeypatch.setattr(procfs, "boot_id", lambda: "another boot")
    assert one.restore(EMPTY) == (STATE, {})


def test_an_earlier_version_without_an_expiry_has_expired(tmp_path: Path) -> None:
    one = store(tmp_path)
    one.save(STATE, {})
    rewritten(one, expires_ms=12)
    assert one.restore(EMPTY)[0].expires_ms == 12
    path = one.path("n0")
    value = orjson.loads(text_of(path.read_bytes().removesuffix(b"\n")) or b"")
    del value["expires_ms"], value["instances"][0]["finished"]
    path.write_bytes(checked_line(orjson.dumps(value)))
    found = one.restore(EMPTY)[0]
    assert found.expires_ms == 1 and found.instances[0].finished == 0


@pytest.mark.parametrize(
    "damage", [{"assignment": 7}, {"instances": [{}]}, {"refused": []}, {"boot_id": None}]
)
def test_a_file_with_other_contents_is_not_used(
    damage: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = store(tmp_path)
    one.save(STATE, {"a": ENGINE})
    rewritten(one, **damage)
    found, recorded = one.restore(EMPTY)
    assert recorded == {}
    if damage != {"boot_id": None}:
        assert found == EMPTY and "cannot be used" in caplog.text


def test_a_damaged_file_and_the_file_of_another_node_are_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = store(tmp_path)
    one.save(STATE, {})
    path = one.path("n0")
    whole = path.read_bytes()
    one.path("n1").write_bytes(whole)
    assert one.restore(NodeState("n1", POOL)) == (NodeState("n1", POOL), {})
    assert "of node n0" in caplog.text
    path.write_bytes(whole.replace(b'"expires_ms":99', b'"expires_ms":98'))
    assert one.restore(EMPTY) == (EMPTY, {})
    assert "checksum is wrong" in caplog.text


def test_a_failed_write_is_logged_once_and_its_fault_ends_with_the_next_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = store(tmp_path)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("executors.node.state_store.replace_file", full)
        assert not one.save(STATE, {}) and not one.save(STATE, {})
    assert one.fault == (
        f"cannot write {one.path('n0')}: No space left on device; a restart may lose changes"
    )
    assert len(caplog.records) == 1
    assert one.save(STATE, {}) and one.fault == ""


def test_a_read_only_folder_of_an_earlier_run_is_locked_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its engines need an executor."""
    store(tmp_path)
    opened = os.open

    def read_only(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & os.O_RDWR:
            raise OSError(30, "Read-only file system")
        return opened(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", read_only)
    one = StateStore(tmp_path)
    one.open()
    assert "cannot write" in one.fault
    monkeypatch.undo()
    with pytest.raises(Exception, match="in use by another executor"):
        StateStore(tmp_path).open()
    one.close()
    one.close()
    store(tmp_path)


def test_the_lock_names_only_its_present_owner(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("123456789012345")
    one = StateStore(tmp_path)
    one.open()
    assert (tmp_path / "lock").read_text() == str(os.getpid())
    one.close()


def test_a_place_is_one_folder_on_one_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = StateStore(tmp_path / "a").place
    assert place == StateStore(tmp_path / "b" / ".." / "a").place
    assert place != StateStore(tmp_path / "b").place
    host, machine, folder = place.split(":")
    assert host and len(machine) == len(folder) == 8
    monkeypatch.setattr(Path, "read_text", lambda _: "other machine")
    other = StateStore(tmp_path / "a").place
    assert other.split(":")[0] == host and other.split(":")[1] != machine
    assert other.split(":")[2] == folder

    def missing(_: Path) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    monkeypatch.setattr(procfs, "boot_id", lambda: "boot 1")
    first = StateStore(tmp_path / "a").place
    monkeypatch.setattr(procfs, "boot_id", lambda: "boot 2")
    assert first != StateStore(tmp_path / "a").place, "without an id, the boot names the machine"
