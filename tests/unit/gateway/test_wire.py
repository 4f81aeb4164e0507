"""Large requests of one client do not delay other clients: scheduling of steps, and blocks of
bodies.
"""

from __future__ import annotations

import asyncio

import pytest

from executors.gateway.wire.body_blocks import BodyBuffer
from executors.gateway.wire.body_memory import BodyMemory
from executors.gateway.wire.client_connection import ClientConnection
from executors.gateway.wire.client_exchange import Exchange
from executors.gateway.wire.client_limits import ClientLimits
from executors.gateway.wire.engine_pool import EnginePool, _EngineConnection
from executors.gateway.wire.fair_scheduler import FairScheduler
from executors.gateway.wire.http_server import HttpServer
from tests.hang_limit import HANG_S


def test_one_step_runs_per_iteration_and_unscheduled_work_waits_for_one_step_at_most() -> None:
    async def run() -> list[str]:
        loop, done = asyncio.get_running_loop(), list[str]()
        scheduler = FairScheduler()
        for name in "abc":
            scheduler.run_or_queue(lambda name=name: done.append(name))  # type: ignore[misc]
        loop.call_soon(done.append, "unscheduled")
        while len(done) < 4:
            await asyncio.sleep(0)
        return done

    assert asyncio.run(run()) == ["a", "b", "unscheduled", "c"]


def test_a_queued_step_runs_in_a_later_iteration_even_if_none_ran_in_this_one() -> None:
    async def run() -> list[str]:
        done = list[str]()
        scheduler = FairScheduler()
        scheduler.queue(lambda: done.append("read"))
        done.append("now")
        while len(done) < 2:
            await asyncio.sleep(0)
        return done

    assert asyncio.run(run()) == ["now", "read"]


def test_the_blocks_form_the_body_and_small_parts_share_blocks() -> None:
    buffer = BodyBuffer()
    for number in range(200_000):
        buffer.add(b"%05d" % (number % 100_000))
    assert buffer.size == 1_000_000
    blocks = buffer.take()
    assert b"".join(blocks) == b"".join(b"%05d" % (n % 100_000) for n in range(200_000))
    assert len(blocks) <= 16
    assert buffer.take() == ()
    buffer.add(b"next")
    assert buffer.take() == (b"next",)


def test_a_large_part_is_not_copied() -> None:
    buffer, part = BodyBuffer(), b"x" * 250_000
    for _ in range(3):
        buffer.add(part)
    assert all(block is part for block in buffer.take())


class Wire(asyncio.Transport):
    """A transport whose peer reads all data at once."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.calls: list[str] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True

    def close(self) -> None:
        self.closed = True

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


def test_large_bodies_go_to_engines_one_block_per_iteration_even_if_engines_read_fast() -> None:
    async def run() -> None:
        pool, wires = EnginePool(1.0, 1.0, 1000), (Wire(), Wire())
        for wire in wires:
            connection = _EngineConnection(pool, "e:1", asyncio.get_running_loop())
            connection.connection_made(wire)
            connection.send(b"head", tuple(b"%d" % number for number in range(20)), 1000)
        before = 2
        for _ in range(60):
            await asyncio.sleep(0)
            now = sum(len(wire.written) for wire in wires)
            assert now <= before + 1
            before = now
        assert all(b"".join(wire.written[1:]) == b"".join(b"%d" % n for n in range(20))
                   for wire in wires)  # fmt: skip

    asyncio.run(run())


def _server() -> HttpServer:
    async def handle(exchange: Exchange) -> None:
        exchange.answer(200, b"")

    def refuse(exchange: Exchange, status: int, why: str) -> None:
        exchange.answer(status, why.encode())

    return HttpServer(handle, refuse, ClientLimits(head_s=0.0), BodyMemory(1 << 20))


@pytest.mark.parametrize(
    ("head", "code"),
    [
        (b"GET / HTTP/1.1\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n", 400),
        (b"GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nAuthorization: x\r\nAuthorization: y\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nAccept: x\r\nAccept: y\r\n", 200),
        (b"GET / HTTP/1.0\r\n", 200),
    ],
)
def test_a_request_has_one_host_and_at_most_one_authorization(head: bytes, code: int) -> None:
    async def run() -> bytes:
        wire = Wire()
        connection = ClientConnection(_server(), asyncio.get_running_loop())
        connection.connection_made(wire)
        data = head + b"\r\n"
        connection.get_buffer(-1)[: len(data)] = data
        connection.buffer_updated(len(data))
        for _ in range(10):
            await asyncio.sleep(0)
        return b"".join(wire.written)

    assert b" %d " % code in asyncio.run(run()).split(b"\r\n")[0]


def test_a_client_that_fills_the_read_buffer_is_read_again_in_a_later_iteration() -> None:
    async def run() -> None:
        server, wire = _server(), Wire()
        connection = ClientConnection(server, asyncio.get_running_loop())
        connection.connection_made(wire)
        head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 900000\r\n\r\n"
        buffer = connection.get_buffer(-1)
        buffer[: len(head)] = head
        connection.buffer_updated(len(head))
        assert wire.calls == []
        connection.buffer_updated(len(buffer))
        assert wire.calls == ["pause"]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert wire.calls == ["pause", "resume"]

    asyncio.run(run())


def test_many_expired_connections_end_one_per_iteration() -> None:
    async def run() -> None:
        server, wires = _server(), [Wire() for _ in range(30)]
        for wire in wires:
            connection = ClientConnection(server, asyncio.get_running_loop())
            connection.connection_made(wire)
            connection.get_buffer(-1)[:4] = b"POST"
            connection.buffer_updated(4)
        expiring = asyncio.create_task(server._expire_connections())
        ended = 0
        while ended < len(wires):
            await asyncio.sleep(0)
            now = sum(b" 408 " in b"".join(wire.written) for wire in wires)
            assert now <= ended + 1
            ended = now
        expiring.cancel()

    asyncio.run(asyncio.wait_for(run(), HANG_S))


def test_a_new_client_does_not_wait_until_many_connections_have_expired() -> None:
    async def run() -> None:
        server = _server()
        loop = asyncio.get_running_loop()
        for _ in range(300):
            connection = ClientConnection(server, loop)
            connection.connection_made(Wire())
            connection.get_buffer(-1)[:4] = b"POST"
            connection.buffer_updated(4)
        expiring = asyncio.create_task(server._expire_connections())
        while not server.requests_timed_out:
            await asyncio.sleep(0)
        wire, head = Wire(), b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
        connection = ClientConnection(server, loop)
        connection.connection_made(wire)
        connection.get_buffer(-1)[: len(head)] = head
        connection.buffer_updated(len(head))
        for _ in range(10):
            await asyncio.sleep(0)
        assert b" 200 " in b"".join(wire.written) and server.requests_timed_out < 20
        expiring.cancel()

    asyncio.run(asyncio.wait_for(run(), HANG_S))
