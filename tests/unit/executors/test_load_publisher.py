"""Loads of engines reach gateways as long as one listens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, cast

import pytest
import zmq
import zmq.asyncio

from executors.engines.engine_protocol import Contact, EngineKind, Load
from executors.load_feed import EngineLoad, Feed, decode, parse_feed
from executors.node import load_publisher
from executors.node.load_publisher import LoadPublisher
from executors.node.node_state import InstanceRecord
from topics.fleet import DesiredInstance, InstanceState

WISH = DesiredInstance("a", "chat", "aggregated", "g", (0,), engine="fake")
READY = InstanceRecord(WISH, InstanceState.READY, 0, "aggregated", endpoint="h:1", ports=(1,))
STATED = Load(3, 2, held_kv=1)


class Engines:
    """An engine kind. states: the loads by port; a port without one never answers."""

    def __init__(self) -> None:
        self.states: dict[str, Load | None] = {"local:1": STATED}
        self.models: list[str] = []

    async def load(self, engine: Contact) -> Load | None:
        self.models.append(engine.model)
        if engine.endpoint not in self.states:
            await asyncio.Event().wait()
        return self.states[engine.endpoint]


class Bench:
    """A publisher of `records`."""

    def __init__(self, *records: InstanceRecord) -> None:
        self.engines, self.records = Engines(), list(records)
        kinds = {"fake": cast(EngineKind, self.engines)}
        self.publisher = LoadPublisher(
            kinds, cast(Any, None), lambda item: f"local:{item.ports[0]}", lambda: self.records
        )


@pytest.mark.parametrize(
    ("changes", "listed"),
    [
        ({}, True),
        ({"state": InstanceState.DRAINING}, True),
        ({"state": InstanceState.STARTING}, False),
        ({"state": InstanceState.ASLEEP}, False),
        ({"ports": ()}, False),
        ({"endpoint": ""}, False),
        ({"desired": replace(WISH, engine="other")}, False),
    ],
)
async def test_engines_that_have_requests_are_asked(changes: dict[str, Any], listed: bool) -> None:
    bench = Bench(replace(READY, **changes))
    assert await bench.publisher._loads() == ([EngineLoad("h:1", 3, 2, 1)] if listed else [])
    assert bench.engines.models == (["chat"] if listed else [])
    bench.publisher.close()


async def test_a_load_that_cannot_be_read_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_publisher, "_LIMIT_S", 0.01)
    others = [replace(READY, endpoint=f"h:{port}", ports=(port,)) for port in (2, 3)]
    bench = Bench(READY, *others)
    bench.engines.states["local:2"] = None
    assert [load.address for load in await bench.publisher._loads()] == ["h:1"]
    bench.publisher.close()


@pytest.fixture
async def context() -> AsyncIterator[zmq.asyncio.Context]:
    made = zmq.asyncio.Context()
    yield made
    made.destroy(linger=0)


def gateway(context: zmq.asyncio.Context, feed: Feed) -> zmq.asyncio.Socket:
    socket = context.socket(zmq.SUB)
    public, socket.curve_secretkey = zmq.curve_keypair()
    socket.curve_publickey, socket.curve_serverkey = public, feed.key
    socket.setsockopt(zmq.SUBSCRIBE, b"")
    socket.connect(feed.url)
    return socket


async def test_loads_are_read_only_while_a_gateway_listens(
    context: zmq.asyncio.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four times a second, or less often if reading takes more than a twentieth of the time."""
    bench, pauses = Bench(READY), list[float]()
    feed = parse_feed(bench.publisher.open("127.0.0.1", "127.0.0.1"))
    assert feed is not None
    yields = asyncio.sleep

    async def passes(seconds: float) -> None:
        pauses.append(seconds)
        await yields(0.001)

    monkeypatch.setattr(asyncio, "sleep", passes)
    running = asyncio.create_task(bench.publisher.run())
    try:
        while len(pauses) < 3:
            await yields(0)
        assert bench.engines.models == [] and pauses[:3] == [0.25] * 3
        first, second = gateway(context, feed), gateway(context, feed)
        for socket in (first, second):
            assert decode(await socket.recv()) == [EngineLoad("h:1", 3, 2, 1)]
        second.close(linger=0)
        bench.engines.states["local:1"] = Load(9, 0)
        while (told := decode(await first.recv())) == [EngineLoad("h:1", 3, 2, 1)]:
            pass
        assert told == [EngineLoad("h:1", 9, 0, 0)]
        slow_s, clock = [0.0], asyncio.get_running_loop().time

        async def slow() -> list[EngineLoad]:
            slow_s[0] += 0.5
            return []

        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: clock() + slow_s[0])
        monkeypatch.setattr(bench.publisher, "_loads", slow)
        while pauses[-1] == 0.25:
            await yields(0.001)
        assert 10.0 <= pauses[-1] < 15.0
        first.close(linger=0)
        while bench.publisher._listeners:
            await yields(0)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        bench.publisher.close()


async def test_an_address_that_cannot_be_bound_has_no_feed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    assert bench.publisher.open("203.0.113.1", "h") == ""
    assert "203.0.113.1: no load feed" in caplog.text
    bench.publisher.close()


async def test_a_feed_states_the_advertised_address() -> None:
    bench = Bench()
    text = bench.publisher.open("127.0.0.1", "gpu-1.example")
    feed = parse_feed(text)
    assert feed is not None and feed.url.startswith("tcp://gpu-1.example:") and len(feed.key) == 40
    bench.publisher.close()
