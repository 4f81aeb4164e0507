"""Requests without free capacity wait in a queue of the gateway."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest

from autoscaler.serving.routing_policies import RoutingPolicy, WithinCombo
from tests.hang_limit import HANG_S
from tests.integration.gateway.gateway_bench import MakeBench, total, until
from topics.records import Endpoint, RouteGroup


async def test_requests_beyond_the_queue_limit_are_refused_at_once(bench: MakeBench) -> None:
    b = await bench(max_waiting=1)
    b.route()
    first = asyncio.create_task(b.post())
    await until(lambda: b.gateway.meters.get("chat") is not None)
    status, text = await asyncio.wait_for(b.post(), HANG_S)
    assert status == 429
    assert json.loads(text)["error"]["type"] == "overloaded"
    first.cancel()
    with pytest.raises((asyncio.CancelledError, aiohttp.ClientError)):
        await first


async def test_requests_without_capacity_wait_and_go_to_the_new_instance(
    bench: MakeBench,
) -> None:
    """Engines get only as many requests as they have slots. The others follow in the order of
    arrival.
    """
    b = await bench()
    old, new = await b.engine("old"), await b.engine("new")
    old.mode = "gate"
    bounded = Endpoint(old.name, old.endpoint.address, slots=2)
    b.route(RouteGroup("g", 1.0, (bounded,)))
    asked = []
    for n in range(5):
        asked.append(asyncio.create_task(b.post(prompt=f"p{n}")))
        await until(
            lambda n=n: len(old.seen) + b.gateway.proxy.admission.waiting_count("chat") == n + 1
        )
    await until(lambda: len(old.seen) == 2)
    assert await b.metric("waiting") == 3
    assert await b.metric("in_flight") == 5
    b.route(RouteGroup("g", 1.0, (bounded, new.endpoint)), generation=2)
    await until(lambda: len(new.seen) == 3)
    assert [body["prompt"] for body in new.seen] == ["p2", "p3", "p4"]
    assert await b.metric("waiting") == 0
    old.gate.set()
    assert [status for status, _ in await asyncio.gather(*asked)] == [200] * 5
    assert len(old.seen) == 2


async def test_no_capacity_in_time_is_429_and_counts_as_refused(bench: MakeBench) -> None:
    b = await bench(speed=50.0, queue_s=5.0, hold_s=1.0)
    engine = await b.engine("e")
    engine.mode = "gate"
    b.route(RouteGroup("g", 1.0, (Endpoint("e", engine.endpoint.address, slots=1),)))
    first = asyncio.create_task(b.post())
    await until(lambda: bool(engine.seen))
    status, text = await b.post()
    assert status == 429
    assert json.loads(text)["error"]["type"] == "overloaded"
    await until(lambda: total(b.link.records, "refused") == 1)
    engine.gate.set()
    assert (await first)[0] == 200
    assert (await b.post())[0] == 200


async def test_a_client_that_leaves_leaves_the_queue(bench: MakeBench) -> None:
    """The next request in the queue gets the slot."""
    b = await bench()
    engine = await b.engine("e")
    engine.mode = "gate"
    b.route(RouteGroup("g", 1.0, (Endpoint("e", engine.endpoint.address, slots=1),)))
    first = asyncio.create_task(b.post(prompt="first"))
    await until(lambda: bool(engine.seen))
    places = b.gateway.proxy.admission
    gone = asyncio.create_task(b.post(prompt="gone"))
    await until(lambda: places.waiting_count("chat") == 1)
    behind = asyncio.create_task(b.post(prompt="behind"))
    await until(lambda: places.waiting_count("chat") == 2)
    gone.cancel()
    await until(lambda: places.waiting_count("chat") == 1)
    engine.gate.set()
    assert [(await task)[0] for task in (first, behind)] == [200, 200]
    assert [body["prompt"] for body in engine.seen] == ["first", "behind"]
    assert await b.metric("client_aborts_total") == 1


async def test_a_prefill_slot_is_free_once_the_prefill_is_done(bench: MakeBench) -> None:
    """The prefill instance has one slot, and three requests decode at the same time."""
    b = await bench(policy=RoutingPolicy(inside=WithinCombo.ROUND_ROBIN))  # always hand over
    prefill, decode = await b.engine("p"), await b.engine("d")
    decode.mode = "gate"
    bounded = Endpoint("p", prefill.endpoint.address, slots=1)
    b.route(RouteGroup("g", 1.0, prefill=(bounded,), decode=(decode.endpoint,)))
    asked = [asyncio.create_task(b.post()) for _ in range(3)]
    await until(lambda: len(decode.seen) == 3)
    decode.gate.set()
    assert [status for status, _ in await asyncio.gather(*asked)] == [200] * 3
    assert b.gateway.table.routers["chat"].in_flight(bounded) == 0


async def test_failures_and_aborts_release_their_slots(bench: MakeBench) -> None:
    b = await bench()
    bad, good = await b.engine("bad"), await b.engine("good")
    bad.mode = "status:500"
    ends = tuple(Endpoint(e.name, e.endpoint.address, slots=2) for e in (bad, good))
    b.route(RouteGroup("g", 1.0, ends))
    assert [(await b.post())[0] for _ in range(4)] == [200] * 4
    good.mode = "gate"
    gone = [asyncio.create_task(b.post()) for _ in range(2)]
    await until(lambda: len(good.seen) == 6)
    for task in gone:
        task.cancel()
    router = b.gateway.table.routers["chat"]
    await until(lambda: [router.in_flight(end) for end in ends] == [0, 0])


async def test_a_request_for_a_recommend_only_model_without_routes_does_not_wait(
    bench: MakeBench,
) -> None:
    """No instance will start for the request, so it gets 503 at once. With routes it is served."""
    b = await bench(speed=1.0, hold_s=60.0, recommend_only=frozenset({"chat"}))
    async with asyncio.timeout(HANG_S):
        status, text = await b.post()
    assert status == 503
    assert "mode is not act" in text
    engine = await b.engine("e")
    b.route(RouteGroup("g", 1.0, (engine.endpoint,)))
    assert (await b.post())[0] == 200
