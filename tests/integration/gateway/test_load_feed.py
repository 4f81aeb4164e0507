"""The load feed between an executor's publisher and a gateway's subscriber, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import aiohttp
import pytest
import zmq

from executors.engines.engine_protocol import Contact, Load
from executors.gateway.gateway_metrics import GatewayMetrics
from executors.gateway.load_subscriber import LoadSubscriber
from executors.gateway.route_table import RouteTable
from executors.load_feed import EngineLoad, Feed, decode, encode, feed_text, parse_feed
from executors.node.load_publisher import LoadPublisher
from executors.node.node_state import InstanceRecord
from tests.hang_limit import HANG_S
from topics.fleet import DesiredInstance, InstanceState
from topics.records import Endpoint, RouteGroup, Routes

AT = "127.0.0.1:4001"
END = Endpoint("i", AT, 4)


class Engines:
    """An engine kind that reports a load and counts the queries."""

    def __init__(self) -> None:
        self.asked = 0
        self.running = 3

    async def load(self, _engine: Contact) -> Load | None:
        self.asked += 1
        return Load(self.running, 0)


def instances(state: InstanceState = InstanceState.READY) -> list[InstanceRecord]:
    desired = DesiredInstance("i", "chat", "aggregated", "g", (0,), "default")
    return [InstanceRecord(desired, state, 0, endpoint=AT, ports=(4001,))]


def subscriber(feed: str) -> tuple[RouteTable, LoadSubscriber]:
    metrics = GatewayMetrics()
    table = RouteTable(metrics, None, 1.0)
    group = RouteGroup("g", 1.0, (END,))
    table.apply(Routes("chat", 1, 1, 0, 2000.0, 60.0, (group,), feeds=(feed,)))
    return table, LoadSubscriber(table, metrics)


async def until(condition: Callable[[], bool], limit_s: float = HANG_S) -> bool:
    for _ in range(int(limit_s / 0.02)):
        if condition():
            return True
        await asyncio.sleep(0.02)
    return False


def fed(
    scenario: Callable[[Engines, LoadPublisher, str], Any],
    state: InstanceState = InstanceState.READY,
) -> None:
    async def run() -> None:
        engines = Engines()
        kinds = cast(Any, {"default": engines})
        async with aiohttp.ClientSession() as client:
            publisher = LoadPublisher(
                kinds, client, lambda item: f"127.0.0.1:{item.ports[0]}", lambda: instances(state)
            )
            feed = publisher.open("127.0.0.1", "127.0.0.1")
            running = asyncio.create_task(publisher.run())
            try:
                await scenario(engines, publisher, feed)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                publisher.close()

    asyncio.run(run())


def test_a_gateway_receives_loads_and_forgets_old_ones() -> None:
    async def scenario(engines: Engines, publisher: LoadPublisher, feed: str) -> None:
        table, listener = subscriber(feed)
        router = table.routers["chat"]
        listening = asyncio.create_task(listener.run())
        try:
            assert await until(lambda: not router.has_room() or engines.asked > 3)
            assert router.pick() is not None
            assert (
                router.pick() is None
            )  # 3 requests of another gateway and 1 of ours take all 4 slots.
            engines.running = 0
            assert await until(router.has_room)
            engines.running = 9
            assert await until(lambda: not router.has_room())
            publisher.close()
            assert await until(router.has_room)
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    fed(scenario)


def test_engines_are_not_queried_without_subscribers() -> None:
    async def scenario(engines: Engines, _publisher: LoadPublisher, feed: str) -> None:
        await asyncio.sleep(0.6)
        assert engines.asked == 0
        _, listener = subscriber(feed)
        listening = asyncio.create_task(listener.run())
        assert await until(lambda: engines.asked > 0)
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        await asyncio.sleep(0.6)
        before = engines.asked
        await asyncio.sleep(0.6)
        assert engines.asked == before

    fed(scenario)


def test_a_subscriber_without_the_key_receives_nothing() -> None:
    async def scenario(engines: Engines, _publisher: LoadPublisher, feed: str) -> None:
        other, _ = zmq.curve_keypair()
        address = feed.split(" ")[0]
        _, listener = subscriber(f"{address} {other.decode()}")
        listening = asyncio.create_task(listener.run())
        await asyncio.sleep(1.0)
        assert engines.asked == 0
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)

    fed(scenario)


def test_starting_engines_are_not_queried() -> None:
    async def scenario(engines: Engines, _publisher: LoadPublisher, feed: str) -> None:
        _, listener = subscriber(feed)
        listening = asyncio.create_task(listener.run())
        await asyncio.sleep(0.8)
        assert engines.asked == 0
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)

    fed(scenario, InstanceState.STARTING)


def test_messages_are_equal_after_a_round_trip_and_others_are_refused() -> None:
    loads = [EngineLoad(AT, 1, 2, 3)]
    assert decode(encode(loads)) == loads
    for broken in (
        b"", b"\xff", b"[]", b"{}", b'{"version":2,"loads":[]}', b'{"version":1,"loads":[["a",1]]}',
        b'{"version":1,"loads":[["a",1,-1,0]]}', b'{"version":1,"loads":[["a",1,true,0]]}',
        b'{"version":1,"loads":[["a",1,1e3,0]]}', b" " * (1 << 21),
    ):  # fmt: skip
        assert decode(broken) is None


@pytest.mark.parametrize("host", ["10.0.0.3", "node-7.internal", "fd00::3"])
def test_a_feed_address_is_equal_after_a_round_trip(host: str) -> None:
    public, _ = zmq.curve_keypair()
    shown = f"[{host}]" if ":" in host else host
    assert parse_feed(feed_text(host, 5711, public)) == Feed(f"tcp://{shown}:5711", public)
    assert parse_feed("ipc:///etc/passwd " + public.decode()) is None
    assert parse_feed(f"{shown}:5711 short") is None
