"""Connections between the ranks of a simulated instance over several nodes.

Rank 0 listens at the rendezvous, and the other ranks connect. As with vLLM 0.32, rank 0 is ready
once all ranks have connected. When a rank is lost, requests hang although /health returns 200.
Ranks other than 0 serve no requests, and keep running without rank 0 until they are stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from executors.engines.simulated.engine_server import first_of
from topics.instance_ranks import GangRank

_RETRY_S = 0.1


class Ranks:
    """Rank 0's side. lost: called when a connected rank disconnects."""

    def __init__(self, gang: GangRank, lost: Callable[[], None]) -> None:
        self._gang = gang
        self._lost = lost
        self._connected: set[int] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._closing = False
        self.complete = asyncio.Event()

    async def open(self, host: str) -> None:
        """Listen on `host` at the rendezvous port. Raises OSError if the port is in use."""
        port = int(self._gang.rendezvous.rpartition(":")[2])
        self._server = await asyncio.start_server(self._on_connect, host, port)

    def close(self) -> None:
        """Disconnect the other ranks."""
        self._closing = True
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.close()

    async def _on_connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        gang, _, rank = (await reader.readline()).decode(errors="replace").strip().partition(" ")
        if gang != self._gang.gang or not rank.isdigit():
            writer.close()
            return
        self._connected.add(int(rank))
        if self._connected >= set(range(1, self._gang.size)):
            self.complete.set()
        with contextlib.suppress(OSError):
            await reader.read()  # waits for the disconnect
        self._connected.discard(int(rank))
        if self.complete.is_set() and not self._closing:
            self._lost()


async def follow(gang: GangRank, stop: asyncio.Event, gone: asyncio.Event) -> int:
    """Connect to rank 0 and run until this process is stopped; returns the exit code."""

    async def hold() -> None:
        host, _, port = gang.rendezvous.rpartition(":")
        while True:
            try:
                reader, writer = await asyncio.open_connection(host, int(port))
                break
            except OSError:  # rank 0 does not listen yet
                await asyncio.sleep(_RETRY_S)
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
