"""The ranks of a simulated instance over several nodes, which hold on to each other.

Owns the rendezvous: rank 0 listens, the others connect. As with vLLM 0.32 rank 0 is ready only when
all have come, and when one is lost its requests hang while /health says 200; the others serve
nothing, and stay when rank 0 is gone, until somebody ends them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from executors.engines.simulated.engine_server import first_of
from topics.instance_ranks import GangRank

_AGAIN_S = 0.1


class Ranks:
    """Rank 0's side. lost: called when a rank that had come is gone."""

    def __init__(self, gang: GangRank, lost: Callable[[], None]) -> None:
        self._gang = gang
        self._lost = lost
        self._here: set[int] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._closing = False
        self.complete = asyncio.Event()

    async def open(self, host: str) -> None:
        """Listen on `host` at the port of the rendezvous; OSError: it is taken."""
        port = int(self._gang.rendezvous.rpartition(":")[2])
        self._server = await asyncio.start_server(self._joined, host, port)

    def close(self) -> None:
        """Let the others go."""
        self._closing = True
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.close()

    async def _joined(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        gang, _, rank = (await reader.readline()).decode(errors="replace").strip().partition(" ")
        if gang != self._gang.gang or not rank.isdigit():
            writer.close()
            return
        self._here.add(int(rank))
        if self._here >= set(range(1, self._gang.size)):
            self.complete.set()
        with contextlib.suppress(OSError):
            await reader.read()  # it says nothing more
        self._here.discard(int(rank))
        if self.complete.is_set() and not self._closing:
            self._lost()


async def follow(gang: GangRank, stop: asyncio.Event, gone: asyncio.Event) -> int:
    """Join rank 0 and stay until this process is told to end; the exit code."""

    async def hold() -> None:
        host, _, port = gang.rendezvous.rpartition(":")
        while True:
            try:
                reader, writer = await asyncio.open_connection(host, int(port))
                break
            except OSError:  # it does not listen yet
                await asyncio.sleep(_AGAIN_S)
        writer.write(f"{gang.gang} {gang.rank}\n".encode())
        with contextlib.suppress(OSError):
            await reader.read()
        writer.close()

    holding = asyncio.create_task(hold())
    try:
        await first_of(stop, gone)
    finally:
        holding.cancel()
    return 0
