"""Run several gateway processes on one port and restart those that die.

The kernel distributes connections among them (SO_REUSEPORT). For the rest of the system, each
worker is a separate gateway: its id ends in .w1, .w2 and so on, its state is in a folder of that
name, and its metrics are on a separate loopback port (the shared port + 1, + 2, ...).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from topics.edge.supervision import SUPERVISION_VARIABLE, watch_supervisor

log = logging.getLogger(__name__)

_ReadyLine = asyncio.Future[dict[str, object]]
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _LONG_LIFE_S = 0.5, 10.0, 60.0


class WorkerProcesses:
    """The workers of one port. argv: gateway options that are equal for all workers. port: 0 = a
    free port, and free loopback ports for the workers."""

    def __init__(
        self, count: int, argv: Sequence[str], host: str, port: int, name: str, state: str | None
    ) -> None:
        self._count = count
        self._argv = tuple(argv)
        self._host, self._port = host, port
        self._name, self._state = name, state
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._supervision = os.pipe()  # workers end when the write end closes
        self._ending = False

    async def run(self) -> int:
        """Run until SIGTERM, SIGINT or the end of the supervisor, and return the exit code. Raises
        OSError if the address is not available."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signal_all, signal.SIGTERM)
        watch_supervisor(loop, self._on_supervisor_gone)
        fixed = self._port
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        with socket.socket(family) as reservation:  # reserves the port
            reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            reservation.bind((self._host, self._port))
            self._port = reservation.getsockname()[1]
            ready: list[_ReadyLine] = [loop.create_future() for _ in range(self._count)]
            supervising = [
                asyncio.create_task(
                    self._supervise(index, fixed + index + 1 if fixed else 0, future)
                )
                for index, future in enumerate(ready)
            ]
            all_ready: asyncio.Future[list[dict[str, object]]] = asyncio.gather(*ready)
            either: list[asyncio.Future[Any]] = [all_ready, *supervising]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if all_ready.done():
                ready_lines = all_ready.result()
                own = [line["own_url"] for line in ready_lines]
                ready_line = {"ready": True, "url": ready_lines[0]["url"], "workers": own}
                print(orjson.dumps(ready_line).decode(), flush=True)
            else:  # a worker failed to start: end all workers
                all_ready.cancel()
                self._signal_all(signal.SIGTERM)
            return max(await asyncio.gather(*supervising))

    async def _supervise(
        self, index: int, own_port: int, ready_line: asyncio.Future[dict[str, object]]
    ) -> int:
        """Keep one worker running. Returns its exit code when all workers end, or if the worker
        never started."""
        name = f"w{index + 1}"
        argv = [
            sys.executable, "-m", "executors.gateway", *self._argv,
            "--host", self._host, "--port", str(self._port), "--own-port", str(own_port),
            "--gateway-id", f"{self._name}.{name}",
        ]  # fmt: skip
        if self._state:
            argv += ["--state-dir", str(Path(self._state, name))]
        pause_s, loop = _FIRST_PAUSE_S, asyncio.get_running_loop()
        code = 0
        while not self._ending:
            began = loop.time()
            process = self._running[index] = await asyncio.create_subprocess_exec(
                *argv,
                stdout=asyncio.subprocess.PIPE,
                pass_fds=(self._supervision[0],),
                env={**os.environ, SUPERVISION_VARIABLE: str(self._supervision[0])},
            )
            self._end_if_ending(process)
            assert process.stdout is not None  # noqa: S101 - a pipe
            line = await process.stdout.readline()
            if line and not ready_line.done():
                ready_line.set_result(orjson.loads(line))
            code = await process.wait()
            del self._running[index]
            if self._ending or not ready_line.done():
                return code
            if loop.time() - began > _LONG_LIFE_S:
                pause_s = _FIRST_PAUSE_S
            log.error("worker %s ended with code %d; restarting", name, code)
            await asyncio.sleep(pause_s)
            code = 0
            pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)

        return code

    def _end_if_ending(self, process: asyncio.subprocess.Process) -> None:
        """End `process` if a shutdown of all workers began while it was starting."""
        if self._ending:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()

    def _on_supervisor_gone(self) -> None:
        """The supervisor is gone: closing the pipe ends the workers at once."""
        self._ending = True
        os.close(self._supervision[1])

    def _signal_all(self, number: signal.Signals) -> None:
        self._ending = True
        for process in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)
