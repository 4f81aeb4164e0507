"""The simulated engine: its HTTP side and its batching model."""

from __future__ import annotations

import asyncio
import time

import pytest

from autoscaler.serving.batching import Batcher
from autoscaler.serving.engine_requests import Limits
from executors.engines.simulated.answer_stream import Answer
from executors.engines.simulated.completions_api import Job, RemoteKv
from executors.engines.simulated.simulated_engine import Engine, Identity
from executors.engines.simulated.small_http import Connection, Request, Responder
from tests.hang_limit import HANG_S
from topics.time_base import TimeBase


class OneMs:
    """A performance model in which every iteration takes 1 ms."""

    def prefill_ms(self, tokens: float, context: float = 0.0) -> float:
        return 1.0

    def decode_ms(self, batch: float, context_tokens: float) -> float:
        return 1.0

    def mixed_ms(self, tokens: float, context: float, decodes: float, length: float) -> float:
        return 1.0


async def nothing(remote: RemoteKv, transfer_ms: float) -> bool:
    return False


def made(first_token_ms: float = 0.0) -> Engine:
    return Engine(
        Batcher(OneMs(), Limits(max_seqs=1, kv_tokens=200_000)),
        TimeBase(1.0, 1_700_000_000_000, time.monotonic_ns()),
        Identity("m", "e", "127.0.0.1", 1, 1),
        lambda tokens: 0.0,
        nothing,
        first_token_ms=first_token_ms,
    )


def ask(engine: Engine, output_tokens: int) -> Responder:
    responder = Responder(Connection(lambda request, way: None, set()), close=False)
    job = Job(False, False, False, False, (10,), 1, output_tokens, "length")
    engine.submit(job, Answer(job, responder, "m", "id", 0))
    return responder


async def test_a_request_behind_a_disconnected_client_is_served_at_once() -> None:
    """After the disconnection, the engine does not sleep until the planned end of the dropped
    answer.
    """
    engine = made()
    long, short = ask(engine, 1_000_000), ask(engine, 5)  # answers of 1,000 s and 5 ms
    while (
        engine.metrics.generation_tokens < 5
    ):  # after 5 tokens, the next event is the end of the answer
        engine.metrics_text()
        await asyncio.sleep(0)
    long.disconnected()
    async with asyncio.timeout(HANG_S):
        await engine.idle.wait()
    assert short.closed


async def test_a_first_token_waits_for_its_extra_delay_unless_its_client_left() -> None:
    engine = made(first_token_ms=150.0)
    began_ms = engine.now_ms()
    answer, left = ask(engine, 5), ask(engine, 5)
    assert (engine.in_flight, answer.closed) == (2, False)
    left.disconnected()
    async with asyncio.timeout(HANG_S):
        await engine.idle.wait()
    assert answer.closed
    assert engine.now_ms() - began_ms >= 150.0
    assert engine.metrics.generation_tokens == 5  # no token for the disconnected client


class Sent(asyncio.Transport):
    """A transport that keeps the written bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.text = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.text += bytes(data)

    def close(self) -> None:
        pass


async def answers(*parts: bytes) -> bytes:
    """The bytes that the server returns for `parts`. It echoes the body of each request."""

    def echo(request: Request, way: Responder) -> None:
        way.respond(200, request.method.encode() + b" " + request.body)

    connection, sent = Connection(echo, set()), Sent()
    connection.connection_made(sent)
    for part in parts:
        connection.data_received(part)
    for _ in range(10):
        await asyncio.sleep(0)
    return sent.text


UPGRADE = b"POST / HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"


@pytest.mark.parametrize(
    "body",
    [
        b"Content-Length: 5\r\n\r\nhello",
        b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ],
)
async def test_an_offered_protocol_upgrade_is_ignored(body: bytes) -> None:
    whole = UPGRADE + body
    for parts in ([whole], [whole[:30], whole[30:-7], whole[-7:]]):
        text = await answers(*parts, UPGRADE + b"\r\n" + b"GET / HTTP/1.1\r\n\r\n")
        assert [text.count(b"200 OK"), text.count(b"HTTP/1.1 ")] == [3, 3]
        assert text.index(b"POST hello") < text.index(b"GET ")
    assert b" 400 " in await answers(b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n")


async def test_an_oversized_head_in_one_piece_is_refused() -> None:
    fields = b"".join(b"X-%d: %b\r\n" % (number, b"x" * 1000) for number in range(40))
    text = await answers(b"GET / HTTP/1.1\r\n" + fields + b"\r\n")
    assert text.startswith(b"HTTP/1.1 431 ") and text.count(b"HTTP/1.1 ") == 1
