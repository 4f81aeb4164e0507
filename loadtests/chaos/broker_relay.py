"""A relay between one process and the broker. It can be cut or slowed.

The relay parses only the two Kafka answers that name the broker's address (Metadata,
FindCoordinator). It replaces the address with its own, so a client connects only through it.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from io import BytesIO
from typing import Any

from aiokafka.protocol import coordination, metadata

_ADDRESSES: dict[tuple[int, int], Any] = {
    (kind.API_KEY, kind.API_VERSION): kind
    for module in (metadata, coordination)
    for name, kind in vars(module).items()
    if name.startswith(("MetadataResponse_v", "FindCoordinatorResponse_v"))
}


class Relay:
    """One listening port in front of `broker` ("host:port").

    is_cut: no data passes, new connections are refused and old ones end. slow_s: delay that is
    added to every answer.
    """

    def __init__(self, broker: str) -> None:
        host, _, port = broker.removeprefix("kafka://").rpartition(":")
        self._broker = host, int(port)
        self._server: asyncio.Server | None = None
        self._ways: set[asyncio.StreamWriter] = set()
        self._port = 0
        self.is_cut = False
        self.slow_s = 0.0

    @property
    def address(self) -> str:
        """Address at which clients connect."""
        return f"127.0.0.1:{self._port}"

    async def open(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """End every connection and stop listening."""
        if self._server is not None:
            self._server.close()
        self._drop()

    def cut(self) -> None:
        """Stop all data from now on."""
        self.is_cut = True
        self._drop()

    def heal(self) -> None:
        """Pass data again."""
        self.is_cut = False
        self.slow_s = 0.0

    def _drop(self) -> None:
        for writer in list(self._ways):
            writer.transport.abort()  # type: ignore[union-attr]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_cut:
            writer.transport.abort()  # type: ignore[union-attr]
            return
        asked: dict[int, tuple[int, int]] = {}
        self._ways.add(writer)
        up: asyncio.StreamWriter | None = None
        try:
            down, up = await asyncio.open_connection(*self._broker)
            self._ways.add(up)
            both = [
                asyncio.ensure_future(self._requests(reader, up, asked)),
                asyncio.ensure_future(self._answers(down, writer, asked)),
            ]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
        except OSError:
            pass
        finally:
            for one in (writer, up):
                if one is not None:
                    self._ways.discard(one)
                    one.transport.abort()  # type: ignore[union-attr]

    async def _requests(
        self, reader: asyncio.StreamReader, up: asyncio.StreamWriter, asked: dict[int, Any]
    ) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                frame = await _frame(reader)
                key, version, correlation = struct.unpack_from(">hhi", frame)
                if (key, version) in _ADDRESSES:
                    asked[correlation] = key, version
                up.write(struct.pack(">i", len(frame)) + frame)
                await up.drain()

    async def _answers(
        self, down: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: dict[int, Any]
    ) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                frame = await _frame(down)
                kind = asked.pop(struct.unpack_from(">i", frame)[0], None)
                if kind is not None:
                    frame = frame[:4] + self._renamed(_ADDRESSES[kind], frame[4:])
                if self.slow_s:
                    await asyncio.sleep(self.slow_s)
                writer.write(struct.pack(">i", len(frame)) + frame)
                await writer.drain()

    def _renamed(self, kind: Any, body: bytes) -> bytes:
        answer = kind.decode(BytesIO(body))
        if kind.API_KEY == 3:
            answer.brokers = [
                (node, "127.0.0.1", self._port, *more) for node, _, _, *more in answer.brokers
            ]
        elif answer.port > 0:
            answer.host, answer.port = "127.0.0.1", self._port
        return bytes(answer.encode())


async def _frame(reader: asyncio.StreamReader) -> bytes:
    size = struct.unpack(">i", await reader.readexactly(4))[0]
    return await reader.readexactly(size)
