"""The simulated engine between its requests and the batching machine."""

from __future__ import annotations

import asyncio
import time

from autoscaler.serving.batching import Batcher
from autoscaler.serving.requests import Limits
from executors.engines.simulated.answer import Answer
from executors.engines.simulated.api import Job, RemoteKv
from executors.engines.simulated.engine import Engine, Identity
from executors.engines.simulated.http import Connection, Responder
from topics.timebase import TimeBase


class OneMs:
    """Every iteration takes a millisecond."""

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


async def test_who_waits_behind_a_client_that_leaves_is_served_at_once() -> None:
    """The engine does not sleep until the end of the answer that nobody wants any more."""
    engine = made()
    long, short = ask(engine, 100_000), ask(engine, 5)  # 100 s, 5 ms
    while engine.metrics.generation_tokens < 5:  # well under way: the next event is its end
        engine.metrics_text()
        await asyncio.sleep(0)
    long.disconnected()
    async with asyncio.timeout(2.0):
        await engine.idle.wait()
    assert short.done


async def test_a_first_token_waits_for_what_is_no_iteration_unless_its_client_left() -> None:
    engine = made(first_token_ms=150.0)
    began_ms = engine.now_ms()
    answer, left = ask(engine, 5), ask(engine, 5)
    assert (engine.in_flight, answer.done) == (2, False)
    left.disconnected()
    async with asyncio.timeout(2.0):
        await engine.idle.wait()
    assert answer.done
    assert engine.now_ms() - began_ms >= 150.0
    assert engine.metrics.generation_tokens == 5  # nothing was made for the client that left
