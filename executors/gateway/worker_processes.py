"""Several gateway processes on one port, for hosts with cores to spare.

Owns the processes: started, started again when they die, told to end, awaited. The kernel spreads
connections over them (SO_REUSEPORT). Each is a gateway of its own to the rest of the system: its
id ends in .w1, .w2 and so on, it keeps its state in a folder of that name, and it answers on a
loopback port of its own as well (the shared port + 1, + 2, ...), where its metrics are read.
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

from executors.supervision import VARIABLE, watch_supervisor

log = logging.getLogger(__name__)

_Hello = asyncio.Future[dict[str, object]]
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _LONG_LIFE_S = 0.5, 10.0, 60.0


class Workers:
    """argv: options of a gateway, without those that differ between workers. port 0 takes a free
    one; the workers' own ports are free ones then."""

    def __init__(
        self, count: int, argv: Sequence[str], host: str, port: int, name: str, state: str | None
    ) -> None:
        self._count = count
        self._argv = tuple(argv)
        self._host, self._port = host, port
        self._name, self._state = name, state
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._supervision = os.pipe()  # workers end when its write end does, however we die
        self._ending = False

    async def run(self) -> int:
        """Until SIGTERM, SIGINT or the supervisor's end; the exit code. OSError if the address
        cannot be had."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._tell, signal.SIGTERM)
        watch_supervisor(loop, self._let_go)
        fixed = self._port
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        with socket.socket(family) as held:  # bound and never listening: it only keeps the port
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.bind((self._host, self._port))
            self._port = held.getsockname()[1]
            ready: list[_Hello] = [loop.create_future() for _ in range(self._count)]
            keeping = [
                asyncio.create_task(self._keep(index, fixed + index + 1 if fixed else 0, said))
                for index, said in enumerate(ready)
            ]
            told: asyncio.Future[list[dict[str, object]]] = asyncio.gather(*ready)
            either: list[asyncio.Future[Any]] = [told, *keeping]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if told.done():
                hellos = told.result()
                own = [hello["own_url"] for hello in hellos]
                said = {"ready": True, "url": hellos[0]["url"], "workers": own}
                print(orjson.dumps(said).decode(), flush=True)
            else:  # one could not begin, so none is to go on
                told.cancel()
                self._tell(signal.SIGTERM)
            return max(await asyncio.gather(*keeping))

    async def _keep(
        self, index: int, own_port: int, said: asyncio.Future[dict[str, object]]
    ) -> int:
        """Keep one worker running; its exit code once it ended in order, or never began."""
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
                env={**os.environ, VARIABLE: str(self._supervision[0])},
            )
            self._tell_late(process)
            assert process.stdout is not None  # noqa: S101 - a pipe
            line = await process.stdout.readline()
            if line and not said.done():
                said.set_result(orjson.loads(line))
            code = await process.wait()
            del self._running[index]
            if self._ending or not said.done():
                return code
            if loop.time() - began > _LONG_LIFE_S:
                pause_s = _FIRST_PAUSE_S
            log.error("worker %s ended with code %d; it is started again", name, code)
            await asyncio.sleep(pause_s)
            code = 0
            pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)

        return code

    def _tell_late(self, process: asyncio.subprocess.Process) -> None:
        """The end may have been said while `process` was being made, when nobody could tell it."""
        if self._ending:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()

    def _let_go(self) -> None:
        """Our supervisor is gone: workers see that of theirs, and end at once."""
        self._ending = True
        os.close(self._supervision[1])

    def _tell(self, number: signal.Signals) -> None:
        self._ending = True
        for process in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)
