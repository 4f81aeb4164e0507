"""A Service of Kubernetes in front of processes of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator


class TcpService:
    """A Service of Kubernetes. endpoints: ports of its ready pods. A connection stays with its pod
    until one side ends it."""

    def __init__(self) -> None:
        self.endpoints: list[int] = []
        self.port = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._forward, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        yield
        server.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.endpoints:
            await forward(reader, writer, "127.0.0.1", random.choice(self.endpoints))
        writer.close()


async def forward(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int
) -> None:
    """Copy in both directions until both sides have ended."""
    with contextlib.suppress(OSError):
        there, back = await asyncio.open_connection(host, port)
        await asyncio.gather(_copy(reader, back), _copy(there, writer))
    writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()
