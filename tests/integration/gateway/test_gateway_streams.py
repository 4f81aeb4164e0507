"""Streams without tokens, errors after the end of a stream, and clients that read slowly."""

from __future__ import annotations

import asyncio

import pytest

from executors.gateway.hang_detector import HangDetector
from tests.integration.gateway.gateway_bench import MakeBench, until
from topics.records import Endpoint, RouteGroup


async def test_a_stream_without_a_token_is_a_valid_answer(bench: MakeBench) -> None:
    """It ends as a stream and counts as completed."""
    b = await bench()
    engine = await b.engine("e", tokens=0)
    b.route(RouteGroup("g", 1.0, (engine.endpoint,)))
    assert await b.post() == (200, "data: [DONE]\n\n")
    await until(lambda: sum(record.completions for record in b.link.records) == 1)


@pytest.mark.parametrize("mode", ["cut-at-end", "hang-at-end"])
async def test_an_error_after_the_end_of_a_stream_is_ignored(bench: MakeBench, mode: str) -> None:
    """The client has the whole answer. The request counts as completed, its slot is free, and no
    engine is ejected.
    """
    b = await bench()
    engine = await b.engine("e")
    engine.mode = mode
    b.route(RouteGroup("g", 1.0, (engine.endpoint,)))
    status, text = await b.post()
    assert (status, text.count("[DONE]")) == (200, 1)
    await until(lambda: sum(record.completions for record in b.link.records) == 1)
    assert sum(record.failures for record in b.link.records) == 0
    assert await b.metric("ejections_total") == 0
    assert b.gateway.table.routers["chat"].in_flight(engine.endpoint) == 0
    engine.gate.set()


async def test_a_client_that_reads_slowly_is_not_an_engine_hang(bench: MakeBench) -> None:
    """While the gateway waits for the client, it does not read from the engine
    and buffers nothing.
    """
    b = await bench(speed=0.1)  # too slow for a periodic check
    detector = b.gateway.proxy.hang_detector = HangDetector(0.0)
    engine = await b.engine("e", tokens=200_000)
    b.route(RouteGroup("g", 1.0, (engine.endpoint,)))
    async with b.http.post(b.gateway.url + "/v1/completions", json=b.body()) as answer:
        connections = b.gateway._server.connections
        await until(lambda: any(c._exchange and c._exchange.blocked for c in connections), 20.0)
        await asyncio.sleep(0.05)
        assert detector.suspects() == []
        line = next(iter(connections))
        assert line._transport is not None
        assert line._transport.get_write_buffer_size() < 2 * 1024 * 1024
        text = await answer.text()
    assert text.count("data: ") == 200_001
    assert text.endswith("data: [DONE]\n\n")


async def test_a_client_that_does_not_read_is_disconnected(bench: MakeBench) -> None:
    """After the configured time, the request's slot at the engine is free. The request does not
    count as a failure.
    """
    b = await bench(speed=1.0, write_real_s=0.5)
    engine = await b.engine("e", tokens=200_000)
    b.route(RouteGroup("g", 1.0, (engine.endpoint,)))
    async with b.http.post(b.gateway.url + "/v1/completions", json=b.body()):
        await until(lambda: b.gateway._server.slow_readers_cut == 1, 20.0)
        await until(lambda: b.gateway.table.routers["chat"].in_flight(engine.endpoint) == 0)
        await until(lambda: sum(record.withdrawn for record in b.link.records) == 1)
    assert sum(record.failures for record in b.link.records) == 0


async def test_silence_counts_again_once_the_engine_is_read_again() -> None:
    """Only the time in which the gateway does not read is excluded from the engine's silence."""
    engine, stalls = Endpoint("e", "h:1"), HangDetector(0.0)
    async with stalls.attempt(engine) as scope:
        stalls.pause_attempt(engine, scope)
        assert stalls.suspects() == []
        stalls.forget(frozenset({engine}))
        stalls.resume_attempt(engine, scope)
        assert stalls.suspects() == [engine]
    assert stalls.suspects() == []
