"""One HTTP server that answers for the engines of all pods without a process: ready and idle."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

_METRICS = (
    b'vllm:num_requests_running{model_name="m"} 0\n'
    b'vllm:num_requests_waiting{model_name="m"} 0\n'
    b'vllm:kv_cache_usage_perc{model_name="m"} 0\n'
    b'vllm:generation_tokens_total{model_name="m"} 1\n'
)
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n"


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        for line in head.lower().split("\r\n"):
            if line.startswith("content-length:"):
                await reader.readexactly(int(line.split(":")[1]))
        writer.write(_HEAD + b"Content-Length: %d\r\n\r\n" % len(_METRICS) + _METRICS)
        await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


@contextlib.asynccontextmanager
async def shared_engine() -> AsyncIterator[int]:
    """Runs the server on every loopback address; yields its port."""
    server = await asyncio.start_server(_answer, "0.0.0.0", 0, backlog=1024)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
