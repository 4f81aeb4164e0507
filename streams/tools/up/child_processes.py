"""Child processes of one run: start, watch, restart, and end all of them with the run.

`streams.tools.up.process_list` lists the processes of a run. Each child has its own session, so
Ctrl-C in the terminal reaches only this process. It then ends the children in order. Every child
has the read end of a pipe (SHOAL_SUPERVISION_FD), and only this process has the write end. If this
process dies, the pipe closes and the children end. This process is also the subreaper: it becomes
the parent of engines whose executor died.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from streams.files.user_errors import UserError
from streams.machine_load import IdleTime
from topics.storage.private_files import open_private

_PR_SET_CHILD_SUBREAPER = 36
_KILL_AFTER_S = 4.0
_RESTART_LIMIT = 20
_LOOK_S = 1.0
_FIRST = asyncio.FIRST_COMPLETED


class ChildFailed(UserError):
    """A part of the run cannot be started or kept running. The text names the part and the
    cause."""


@dataclass
class Child:
    """One part of the run. argv: its command line. on_line: called with each JSON line that the
    part prints."""

    name: str
    argv: Sequence[str]
    log: Path
    restart: bool = True
    on_line: Callable[[Mapping[str, object]], None] | None = None
    process: asyncio.subprocess.Process | None = None
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    hello: Mapping[str, object] = field(default_factory=dict)
    restarts: int = 0
    stopping: bool = False
    up: bool = False  # It has reported that it is ready, and its process is alive.

    @property
    def running(self) -> bool:
        """Whether the process of this part is alive."""
        return self.process is not None and self.process.returncode is None


class Children:
    """All parts of a run, in the order of their start. env: added to this process's environment."""

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        self._env = env or {}
        self._children: list[Child] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._ending = False
        self._supervision_read, self._supervision_write = -1, -1
        self.failed: asyncio.Future[str] | None = None
        self.lost: list[str] = []  # Parts that failed during the run and are not restarted.
        # Called at each event of a part during the run: its text, and whether it is a fault.
        self.on_event: Callable[[str, bool], None] = lambda _text, _bad: None

    def open(self) -> None:
        """Become the subreaper and make the supervision pipe."""
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._supervision_read, self._supervision_write = os.pipe()
        os.set_inheritable(self._supervision_read, True)
        self.failed = asyncio.get_running_loop().create_future()

    async def start(self, child: Child) -> Child:
        """Start a part and keep it running; returns at once (see `wait_ready`)."""
        self._children.append(child)
        await self._spawn(child)
        self._tasks.append(asyncio.create_task(self._keep(child)))
        return child

    def all(self) -> tuple[Child, ...]:
        """Every part that this run has started."""
        return tuple(self._children)

    def down(self) -> tuple[str, ...]:
        """Parts that have ended and are being restarted."""
        return tuple(
            child.name
            for child in self._children
            if child.restarts and not child.up and not self._ending
        )  # fmt: skip

    async def wait_ready(self, child: Child, timeout_s: float) -> Mapping[str, object]:
        """The JSON line with which the part reports that it is ready. ChildFailed: it is not ready
        in time. timeout_s: real seconds on an idle machine, see `IdleTime`.
        """
        assert self.failed is not None  # noqa: S101  open() made it
        waiter = asyncio.create_task(child.ready.wait())
        try:
            either: set[asyncio.Future[Any]] = {waiter, self.failed}
            waited = IdleTime()
            while (left_s := timeout_s - waited.passed_s()) > 0.0:
                pause_s = min(_LOOK_S, left_s)
                if (await asyncio.wait(either, timeout=pause_s, return_when=_FIRST))[0]:
                    break
        finally:
            waiter.cancel()
        if child.ready.is_set():
            return child.hello
        if self.failed.done():
            raise ChildFailed(self.failed.result())
        raise ChildFailed(f"{child.name} was not ready within {timeout_s:.0f} s{_tail(child.log)}")

    async def stop(self, child: Child, wait_s: float = _KILL_AFTER_S) -> int | None:
        """End one part without a restart: SIGTERM, wait, SIGKILL. Returns its exit code."""
        child.restart = False
        child.stopping = True
        process = child.process
        if process is None:
            return None
        if process.returncode is None:
            # Not process.terminate(): it polls the process and could take the exit code that the
            # watcher needs.
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)
            try:
                await asyncio.wait_for(process.wait(), wait_s)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return process.returncode

    async def close(self) -> None:
        """End all parts together, then every process that still descends from this process."""
        self._ending = True
        for child in self._children:
            child.restart = False
        await asyncio.gather(*(self.stop(child) for child in reversed(self._children)))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for fd in (self._supervision_read, self._supervision_write):
            if fd >= 0:
                os.close(fd)
        self._supervision_read = self._supervision_write = -1
        await _sweep()

    async def _spawn(self, child: Child) -> None:
        with open_private(child.log, "ab") as log:
            child.process = await asyncio.create_subprocess_exec(
                *child.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                pass_fds=(self._supervision_read,),
                env={
                    **os.environ,
                    **self._env,
                    "SHOAL_SUPERVISION_FD": str(self._supervision_read),
                },
                limit=1 << 20,
            )

    async def _keep(self, child: Child) -> None:
        try:
            await self._watch(child)
        except Exception as error:
            # The task is awaited only at the end. Report now that the part has no watcher.
            self._fail(f"{child.name} cannot be kept running: {error}")

    async def _watch(self, child: Child) -> None:
        while True:
            assert child.process is not None  # noqa: S101  spawned before
            started = time.monotonic()
            await self._read(child)
            code = await child.process.wait()
            child.up = False
            how = _how(code)
            if not self._should_restart(child):
                if not child.ready.is_set() and not self._ending:
                    self._fail(f"{child.name} {how}{_tail(child.log)}")
                elif code and not child.stopping and not self._ending:
                    self.lost.append(f"{child.name} {how}")
                    self.on_event(f"{child.name} {how}", True)
                return
            if not child.ready.is_set() or child.restarts >= _RESTART_LIMIT:
                self._fail(f"{child.name} {how}{_tail(child.log)}")
                return
            child.restarts += 1
            self.on_event(f"{child.name} {how}; starting it again", True)
            await asyncio.sleep(max(0.0, 0.5 - (time.monotonic() - started)))
            if not self._should_restart(child):
                return
            await self._spawn(child)

    def _should_restart(self, child: Child) -> bool:
        return child.restart and not self._ending

    async def _read(self, child: Child) -> None:
        assert child.process is not None and child.process.stdout is not None  # noqa: S101
        while line := await child.process.stdout.readline():
            try:
                said: object = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue
            if not isinstance(said, dict):
                continue
            if said.get("ready"):
                child.hello = said
                child.ready.set()
                child.up = True
                if child.restarts:
                    self.on_event(f"{child.name} is back", False)
            elif "error" in said and not child.ready.is_set():
                self._fail(str(said["error"]))
            if child.on_line is not None:
                child.on_line(said)

    def _fail(self, why: str) -> None:
        if self.failed is not None and not self.failed.done():
            self.failed.set_result(why)


def _how(code: int) -> str:
    """How a process ended, as text."""
    return f"was killed ({signal.Signals(-code).name})" if code < 0 else f"ended with code {code}"


def _tail(log: Path) -> str:
    """The last line of a part's log, for an error message."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    return f": {lines[-1][:300]} (log: {log})" if lines else f" (log: {log})"


def _descendants() -> list[int]:
    """Every living descendant of this process, read from /proc."""
    parent: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                if fields[0] != "Z":
                    parent[int(entry.name)] = int(fields[1])
    found: list[int] = []
    grew = [os.getpid()]
    while grew:
        grew = [pid for pid, above in parent.items() if above in grew]
        found += grew
    return found


async def _sweep() -> None:
    """End the remaining descendants: SIGTERM, then SIGKILL.

    Every started child has already been awaited. The remaining descendants are therefore orphans
    that the kernel assigned to this process.
    """
    for sign, wait_s in ((signal.SIGTERM, 2.0), (signal.SIGKILL, 1.0)):
        orphans = _descendants()
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, sign)
        deadline = time.monotonic() + wait_s
        while _descendants() and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        for pid in orphans:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
