"""Processes end on a signal, and together with their supervisor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from topics.edge.supervision import supervision_fds

WAITS = """
from topics.edge.supervision import prepare_end
wait = prepare_end()
print('up', flush=True)
wait()
"""
LOOPS = """
import asyncio
from topics.edge.supervision import end_event
async def main():
    event = end_event(asyncio.get_running_loop())
    print('up', flush=True)
    await event.wait()
asyncio.run(main())
"""
STUCK = """
import asyncio
from topics.edge.supervision import end_event, insist
async def main():
    event = end_event(asyncio.get_running_loop())
    insisting = asyncio.create_task(insist(event, 0.2))
    print('up', flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
WORKS = """
import time
from topics.edge.supervision import end_with_supervisor
end_with_supervisor()
print('up', flush=True)
time.sleep(60)
"""


def start(script: str, supervision: int | None) -> subprocess.Popen[bytes]:
    environment = {k: v for k, v in os.environ.items() if k != "SHOAL_SUPERVISION_FD"}
    if supervision is not None:
        environment["SHOAL_SUPERVISION_FD"] = str(supervision)
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        env=environment,
        pass_fds=() if supervision is None else (supervision,),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    return process


@pytest.mark.parametrize("script", [WAITS, LOOPS, STUCK], ids=["blocking", "asyncio", "stuck"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("supervised", [False, True])
def test_a_signal_ends_the_process_with_exit_code_0(
    script: str, number: signal.Signals, supervised: bool
) -> None:
    """This holds with and without a supervisor."""
    read_end, write_end = os.pipe()
    process = start(script, read_end if supervised else None)
    assert process.poll() is None
    process.send_signal(number)
    assert process.wait(5) == 0
    os.close(read_end)
    os.close(write_end)


@pytest.mark.parametrize(
    "script", [WAITS, LOOPS, STUCK, WORKS], ids=["blocking", "asyncio", "stuck", "working"]
)
def test_the_process_ends_with_its_supervisor(script: str) -> None:
    """However the supervisor ends, the kernel closes its end of the pipe."""
    read_end, write_end = os.pipe()
    process = start(script, read_end)
    os.close(read_end)
    assert process.poll() is None
    os.close(write_end)
    assert process.wait(5) == 0


@pytest.mark.parametrize("text", ["987", "", "-1", "x"])
def test_a_stale_descriptor_is_ignored(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """A process that was started by hand, or with an old environment, ends only on a signal."""
    monkeypatch.setenv("SHOAL_SUPERVISION_FD", text)
    assert supervision_fds() == ()
