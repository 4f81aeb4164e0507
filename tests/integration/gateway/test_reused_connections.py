"""Connections that engines close between two requests."""

from __future__ import annotations

import asyncio
import socket

import pytest

from executors.gateway.engine_exchange import EngineClient, EngineUnreachable
from executors.gateway.gateway_settings import GatewaySettings
from topics.records import Endpoint

BODY = b'{"model":"chat"}'


async def answer_one(listener: socket.socket) -> socket.socket:
    """Accept a connection, answer one request on it and return the connection."""
    loop = asyncio.get_running_loop()
    taken, _ = await loop.sock_accept(listener)
    taken.setblocking(False)
    heard = b""
    while not heard.endswith(BODY):
        heard += await loop.sock_recv(taken, 4096)
    await loop.sock_sendall(taken, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    return taken


@pytest.mark.parametrize("lives", [False, True])
async def test_a_request_is_not_sent_on_a_closed_connection(lives: bool) -> None:
    """The event loop has not noticed that the engine closed the connection. A request sent on it
    could seem to have crashed the engine. So the gateway opens a new connection. If that fails,
    another engine may get the request.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        endpoint = Endpoint("one", f"127.0.0.1:{listener.getsockname()[1]}")
        async with EngineClient(GatewaySettings("gateway-1")) as engines:

            async def ask() -> int:
                answer = await engines.post(endpoint, "chat", "/v1/completions", (BODY,), b"")
                await answer.read()
                return answer.status

            status, kept = await asyncio.gather(ask(), answer_one(listener))
            assert status == 200
            kept.close()
            if lives:
                status, fresh = await asyncio.gather(ask(), answer_one(listener))
                assert status == 200
                fresh.close()
            else:
                listener.close()
                with pytest.raises(EngineUnreachable):
                    await ask()
