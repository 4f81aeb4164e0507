"""Lets clients on other hosts reach the embedded broker, over TLS with a certificate of their own.

The embedded broker listens on loopback and trusts everybody. This listener admits only clients that
hold the certificate and the key that it serves with, so both sides share one Secret. It knows
nothing of Kafka's protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

_HANDSHAKE_S = 10.0
_MOST_CLIENTS = 1000
_CHUNK_BYTES = 65_536


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """TLS in which each side shows `certificate`, in PEM, and trusts no other one. OSError: a file
    cannot be read, or the key is not that of the certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(certificate)
    return context


@contextlib.asynccontextmanager
async def tls_listener(
    host: str, port: int, context: ssl.SSLContext, broker: str
) -> AsyncIterator[int]:
    """Context of a listener that forwards connections to `broker`, "host:port"; yields its port.
    port: 0 = any free one. Its end closes all connections. OSError: the address is not available.
    """
    to_host, _, to_port = broker.rpartition(":")
    running: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(running) >= _MOST_CLIENTS:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  asyncio makes a task for each connection
        running[task] = writer
        try:
            there, back = await asyncio.open_connection(to_host, int(to_port))
            try:
                await _first(_copy(reader, back), _copy(there, writer))
            finally:
                back.close()
        except OSError as error:
            log.debug("embedded broker: the connection of a client ended: %s", error)
        finally:
            del running[task]
            writer.transport.abort()

    server = await asyncio.start_server(
        forward, host, port, ssl=context, ssl_handshake_timeout=_HANDSHAKE_S
    )
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        ending = dict(running)
        for writer in ending.values():
            writer.transport.abort()
        await asyncio.gather(*ending)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK_BYTES):
        writer.write(data)
        await writer.drain()


async def _first(*copies: Coroutine[Any, Any, None]) -> None:
    """Run `copies` until one of them ends; raises its error."""
    tasks = [asyncio.create_task(one) for one in copies]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
