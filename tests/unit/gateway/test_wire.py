"""Turns and blocks: what keeps one client's large requests from holding up everybody else."""

from __future__ import annotations

import asyncio

from executors.gateway.wire.body_blocks import Gathering
from executors.gateway.wire.body_memory import Budget
from executors.gateway.wire.client_connection import Connection
from executors.gateway.wire.client_exchange import Exchange
from executors.gateway.wire.client_limits import Limits
from executors.gateway.wire.engine_pool import Pool, _Line
from executors.gateway.wire.fair_scheduler import Turns
from executors.gateway.wire.http_server import Server


def test_one_step_is_taken_in_an_iteration_and_what_has_no_turn_waits_for_one_at_most() -> None:
    async def run() -> list[str]:
        loop, done = asyncio.get_running_loop(), list[str]()
        turns = Turns()
        for name in "abc":
            turns.take(lambda name=name: done.append(name))  # type: ignore[misc]
        loop.call_soon(done.append, "somebody else")
        while len(done) < 4:
            await asyncio.sleep(0)
        return done

    assert asyncio.run(run()) == ["a", "b", "somebody else", "c"]


def test_a_step_that_must_wait_is_taken_in_a_later_iteration_though_the_turn_is_free() -> None:
    async def run() -> list[str]:
        done = list[str]()
        turns = Turns()
        turns.wait(lambda: done.append("read"))
        done.append("now")
        while len(done) < 2:
            await asyncio.sleep(0)
        return done

    assert asyncio.run(run()) == ["now", "read"]


def test_blocks_joined_are_the_body_and_small_parts_make_few_of_them() -> None:
    gathering = Gathering()
    for number in range(200_000):
        gathering.add(b"%05d" % (number % 100_000))
    assert gathering.size == 1_000_000
    blocks = gathering.take()
    assert b"".join(blocks) == b"".join(b"%05d" % (n % 100_000) for n in range(200_000))
    assert len(blocks) <= 16
    assert gathering.take() == ()
    gathering.add(b"next")
    assert gathering.take() == (b"next",)


def test_a_large_part_is_kept_as_it_came() -> None:
    gathering, part = Gathering(), b"x" * 250_000
    for _ in range(3):
        gathering.add(part)
    assert all(block is part for block in gathering.take())


class Wire(asyncio.Transport):
    """A transport whose other end takes everything at once."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.said: list[str] = []
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
        self.said.append("pause")

    def resume_reading(self) -> None:
        self.said.append("resume")

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


def test_large_bodies_go_to_engines_one_block_an_iteration_however_fast_they_are_taken() -> None:
    async def run() -> None:
        pool, wires = Pool(1.0, 1.0, 1000), (Wire(), Wire())
        for wire in wires:
            line = _Line(pool, "e:1", asyncio.get_running_loop())
            line.connection_made(wire)
            line.send(b"head", tuple(b"%d" % number for number in range(20)), 1000)
        before = 2
        for _ in range(60):
            await asyncio.sleep(0)
            now = sum(len(wire.written) for wire in wires)
            assert now <= before + 1
            before = now
        assert all(b"".join(wire.written[1:]) == b"".join(b"%d" % n for n in range(20))
                   for wire in wires)  # fmt: skip

    asyncio.run(run())


def _server() -> Server:
    async def handle(exchange: Exchange) -> None:
        exchange.answer(200, b"")

    def refuse(exchange: Exchange, status: int, why: str) -> None:
        exchange.answer(status, why.encode())

    return Server(handle, refuse, Limits(head_s=0.0), Budget(1 << 20))


def test_who_sends_more_than_is_read_at_once_is_read_again_in_a_later_iteration() -> None:
    async def run() -> None:
        server, wire = _server(), Wire()
        line = Connection(server, asyncio.get_running_loop())
        line.connection_made(wire)
        head = b"POST / HTTP/1.1\r\nContent-Length: 900000\r\n\r\n"
        buffer = line.get_buffer(-1)
        buffer[: len(head)] = head
        line.buffer_updated(len(head))
        assert wire.said == []
        line.buffer_updated(len(buffer))
        assert wire.said == ["pause"]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert wire.said == ["pause", "resume"]

    asyncio.run(run())


def test_a_flood_that_expires_ends_one_connection_an_iteration() -> None:
    async def run() -> None:
        server, wires = _server(), [Wire() for _ in range(30)]
        for wire in wires:
            line = Connection(server, asyncio.get_running_loop())
            line.connection_made(wire)
            line.get_buffer(-1)[:4] = b"POST"
            line.buffer_updated(4)
        looking = asyncio.create_task(server._look())
        ended = 0
        while ended < len(wires):
            await asyncio.sleep(0)
            now = sum(b" 408 " in b"".join(wire.written) for wire in wires)
            assert now <= ended + 1
            ended = now
        looking.cancel()

    asyncio.run(asyncio.wait_for(run(), 5.0))


def test_a_new_client_does_not_wait_for_the_end_of_a_flood_that_expires() -> None:
    async def run() -> None:
        server = _server()
        loop = asyncio.get_running_loop()
        for _ in range(300):
            line = Connection(server, loop)
            line.connection_made(Wire())
            line.get_buffer(-1)[:4] = b"POST"
            line.buffer_updated(4)
        looking = asyncio.create_task(server._look())
        while not server.late:
            await asyncio.sleep(0)
        wire, head = Wire(), b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
        line = Connection(server, loop)
        line.connection_made(wire)
        line.get_buffer(-1)[: len(head)] = head
        line.buffer_updated(len(head))
        for _ in range(10):
            await asyncio.sleep(0)
        assert b" 200 " in b"".join(wire.written) and server.late < 20
        looking.cancel()

    asyncio.run(asyncio.wait_for(run(), 5.0))
