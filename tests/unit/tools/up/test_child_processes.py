"""Child processes of a run start, restart, and have all ended when the run ends."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from streams.tools.up.child_processes import Child, ChildFailed, Children
from tests.hang_limit import HANG_S

READY = "import json, signal, time; print(json.dumps({'ready': True, 'x': 1}), flush=True)"


def child(folder: Path, code: str, restart: bool = True) -> Child:
    return Child("part", [sys.executable, "-c", code], folder / "log", restart)


async def test_a_child_reports_that_it_is_ready_and_ends_on_request(tmp_path: Path) -> None:
    children = Children()
    children.open()
    part = await children.start(child(tmp_path, f"{READY}; signal.pause()"))
    assert (await children.wait_ready(part, 20.0))["x"] == 1
    assert part.process is not None
    pid = part.process.pid
    await children.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_killed_child_is_restarted(tmp_path: Path) -> None:
    children = Children()
    children.open()
    part = await children.start(child(tmp_path, f"{READY}; signal.pause()"))
    await children.wait_ready(part, 20.0)
    assert part.process is not None
    first = part.process.pid
    said: asyncio.Queue[object] = asyncio.Queue()
    part.on_line = said.put_nowait
    os.kill(first, signal.SIGKILL)
    await asyncio.wait_for(said.get(), HANG_S)
    assert part.process.pid != first
    assert part.restarts == 1
    await children.close()


async def test_a_child_that_cannot_start_is_named_with_its_last_output(tmp_path: Path) -> None:
    children = Children()
    children.open()
    part = await children.start(child(tmp_path, "import sys; sys.exit('no such luck')"))
    with pytest.raises(ChildFailed, match="part ended with code 1: no such luck"):
        await children.wait_ready(part, 20.0)
    await children.close()


async def test_processes_left_behind_by_a_child_are_ended(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import signal; "
        "signal.pause()'], start_new_session=True); import json; "
        "print(json.dumps({'ready': True, 'pid': p.pid}), flush=True); "
        "import signal; signal.pause()"
    )
    children = Children()
    children.open()
    part = await children.start(child(tmp_path, code))
    orphan = int(str((await children.wait_ready(part, 20.0))["pid"]))
    await children.close()
    with pytest.raises(ProcessLookupError):
        os.kill(orphan, 0)


async def test_a_child_that_cannot_be_restarted_is_reported(tmp_path: Path) -> None:
    """Its program is missing when it must be restarted."""
    program = tmp_path / "program"
    program.write_text(f"#!{sys.executable}\n{READY}; signal.pause()\n")
    program.chmod(0o755)
    children = Children()
    children.open()
    part = await children.start(Child("part", [str(program)], tmp_path / "log"))
    await children.wait_ready(part, 20.0)
    program.unlink()
    assert part.process is not None and children.failed is not None
    os.kill(part.process.pid, signal.SIGKILL)
    assert "part" in await asyncio.wait_for(asyncio.shield(children.failed), HANG_S)
    await children.close()
