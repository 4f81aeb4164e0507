"""Ends and edges of streams: none in them, cut behind their end, read slowly."""

from __future__ import annotations

import orjson
import pytest

from executors.gateway.hang_detector import HangDetector
from executors.gateway.meter import Ending
from executors.gateway.openai import COMPLETIONS, parse_call
from executors.gateway.request import Request
from tests.integration.gateway.gateway_bench import Bench, MakeBench, until
from topics.records import Endpoint, RouteGroup


async def test_a_stream_without_a_token_ends_as_one(bench: MakeBench) -> None:
    """Nothing generated is an answer, too."""
    b = await bench()
    engine = await b.engine("e", tokens=0)
    b.route(RouteGroup("g", 1.0, (engine.endpoint,)))
    assert await b.post() == (200, "data: [DONE]\n\n")
    await until(lambda: sum(record.completions for record in b.link.records) == 1)


@pytest.mark.parametrize("mode", ["cut-at-end", "hang-at-end"])
async def test_what_happens_behind_the_end_harms_no_served_request(
    bench: MakeBench, mode: str
) -> None:
    """The client has all of it: completed, its place given back, nobody blamed."""
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


class SlowClient:
    """Looks, each time it is written to, whom the gateway would take for hung just then."""

    def __init__(self, b: Bench) -> None:
        self.hang_detector = b.gateway.relay.hang_detector = HangDetector(0.0)
        self.hung: list[list[Endpoint]] = []

    async def answer(self, status: int, body: bytes) -> None:
        raise AssertionError("it asked for a stream")

    async def write(self, data: bytes, last: bool) -> None:
        self.hung.append(self.hang_detector.hung())


async def test_a_client_that_reads_slowly_makes_no_engine_hang(bench: MakeBench) -> None:
    """While the client is waited for, nobody listens to the engine."""
    b = await bench(speed=0.1)  # no look by itself while this lasts
    engine = await b.engine("e")
    b.route(RouteGroup("g", 1.0, (engine.endpoint,)))
    client = SlowClient(b)
    call = parse_call(COMPLETIONS, orjson.dumps(b.body()))
    outcome = await b.gateway.relay.serve(Request(call, client, 0, "r"))
    assert outcome.ending is Ending.COMPLETED
    assert client.hung
    assert not any(client.hung)


async def test_silence_counts_again_once_the_engine_is_listened_to() -> None:
    """Only the time elsewhere is left out."""
    engine, stalls = Endpoint("e", "h:1"), HangDetector(0.0)
    async with stalls.attempt(engine) as scope:
        with stalls.elsewhere(engine, scope):
            assert stalls.hung() == []
            stalls.forget(frozenset({engine}))
        assert stalls.hung() == [engine]
    assert stalls.hung() == []
