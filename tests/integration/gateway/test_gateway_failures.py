"""The gateway in front of engines that fail, hang or die."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.integration.gateway.gateway_bench import MakeBench, total, until
from topics.records import RouteGroup


@pytest.mark.parametrize("mode", ["status:503", "status:500", "error-after:0", "status:404"])
async def test_errors_of_a_living_engine_are_retried(bench: MakeBench, mode: str) -> None:
    b = await bench(verify_real_s=0.05)
    bad, good = await b.engine("bad"), await b.engine("good")
    bad.mode = mode
    b.route(RouteGroup("g", 1.0, (bad.endpoint, good.endpoint)))
    status, text = await b.post()
    assert status == 200
    assert "good0" in text
    assert len(bad.seen) == 1
    assert await b.metric("retries_total") == 1
    gone = mode in ("status:503", "status:404")
    assert await b.metric("ejections_total") == (1 if gone else 0)


async def test_a_dead_engine_is_ejected_and_comes_back_by_a_probe(bench: MakeBench) -> None:
    b = await bench()
    dead, good = await b.engine("dead"), await b.engine("good")
    b.route(RouteGroup("g", 1.0, (dead.endpoint, good.endpoint)))
    port = dead.port
    await dead.stop()
    answers = [await b.post() for _ in range(4)]
    assert [status for status, _ in answers] == [200] * 4
    assert (
        await b.metric("retries_total") == 1
    )  # Only the first request was sent to the dead engine.
    await dead.start(port)
    router = b.gateway.table.routers["chat"]
    await until(lambda: not router.ejected())
    texts = [(await b.post())[1] for _ in range(2)]
    assert any("dead0" in text for text in texts)
    assert await b.metric("readmissions_total") == 1


async def test_an_unhealthy_engine_stays_ejected(bench: MakeBench) -> None:
    b = await bench(speed=100.0, hold_s=10.0)
    engine = await b.engine("e")
    engine.mode, engine.healthy = "status:503", False
    b.route(RouteGroup("g", 1.0, (engine.endpoint,)))
    status, _ = await b.post()
    assert status == 503
    assert len(engine.seen) == 1  # The request waits and is not sent to that engine again.


async def test_a_request_of_a_killed_engine_ends_with_an_error_and_counts(bench: MakeBench) -> None:
    b = await bench()
    engine, other = await b.engine("e"), await b.engine("other")
    engine.mode = "cut-after:2"
    b.route(RouteGroup("g", 1.0, (engine.endpoint, other.endpoint)))
    status, text = await b.post()
    assert status == 200
    events = text.split("\n\n")
    assert "e1" in text
    assert json.loads(events[-3].removeprefix("data: "))["error"]["type"] == "engine_lost"
    assert events[-2] == "data: [DONE]"
    assert not other.seen  # Another instance never continues an answer.
    await until(lambda: total(b.link.records, "failures") == 1)
    assert await b.metric("broken_streams_total") == 1
    assert await b.metric("ejections_total") == 1


async def test_an_engines_own_error_event_is_a_failure(bench: MakeBench) -> None:
    b = await bench()
    engine = await b.engine("e")
    engine.mode = "error-after:2"
    b.route(RouteGroup("g", 1.0, (engine.endpoint,)))
    _, text = await b.post()
    assert "shutting down" in text
    assert text.count("[DONE]") == 1
    await until(lambda: total(b.link.records, "failures") == 1)
    assert total(b.link.records, "completions") == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_is_not_resent_if_its_connection_broke(
    bench: MakeBench, stream: bool
) -> None:
    """The request itself may have caused the crash."""
    b = await bench()
    engines = [await b.engine(f"e{n}") for n in range(3)]
    for engine in engines:
        engine.mode = "cut"
    b.route(RouteGroup("g", 1.0, tuple(engine.endpoint for engine in engines)))
    status, text = await b.post(stream=stream)
    assert status == 502
    assert json.loads(text)["error"]["type"] == "engine_lost"
    assert sum(len(engine.seen) for engine in engines) == 1
    await until(lambda: total(b.link.records, "failures") == 1)
    assert await b.metric("ejections_total") == 1


async def test_a_request_is_not_resent_if_its_engine_crashed_after_a_500(
    bench: MakeBench,
) -> None:
    """vLLM's API server answers 500 when its core has crashed, and then ends."""
    b = await bench(verify_real_s=0.05)
    dying, other = await b.engine("dying"), await b.engine("other")
    dying.mode, dying.healthy = "status:500", False
    b.route(RouteGroup("g", 1.0, (dying.endpoint, other.endpoint)))
    status, _ = await b.post()
    assert status == 502
    assert not other.seen
    assert b.gateway.table.routers["chat"].ejected() == {dying.endpoint}


async def test_a_request_that_always_gets_500_ejects_no_engine(bench: MakeBench) -> None:
    """No other engine answers it either, so no engine is at fault."""
    b = await bench(verify_real_s=0.02)
    engines = [await b.engine(f"e{n}") for n in range(3)]
    b.route(RouteGroup("g", 1.0, tuple(engine.endpoint for engine in engines)))
    for _ in range(5):
        for engine in engines:
            engine.mode = "status:500"
        assert (await b.post())[0] == 502
        for engine in engines:
            engine.mode = "ok"
        assert (await b.post())[0] == 200
    assert not b.gateway.table.routers["chat"].ejected()


async def test_an_engine_that_fails_requests_that_others_answer_is_ejected(
    bench: MakeBench,
) -> None:
    """It fails at three different requests in a row while its health checks pass."""
    b = await bench(verify_real_s=0.02)
    bad, good = await b.engine("bad"), await b.engine("good")
    bad.mode = "status:500"
    b.route(RouteGroup("g", 1.0, (bad.endpoint, good.endpoint)))
    answers = [await b.post() for _ in range(6)]
    assert [status for status, _ in answers] == [200] * 6
    assert len([body for body in bad.seen if body["prompt"] == "a a a"]) == 3
    assert b.gateway.table.routers["chat"].ejected() == {bad.endpoint}


async def test_a_request_on_an_idle_connection_that_the_engine_closed_is_resent(
    bench: MakeBench,
) -> None:
    """An engine may close idle connections. That is no fault of the engine."""
    b = await bench()
    engine, other = await b.engine("e"), await b.engine("other")
    b.route(RouteGroup("g", 1.0, (engine.endpoint,)))
    assert (await b.post())[0] == 200
    engine.mode = "cut-kept"
    status, text = await b.post()
    assert (status, "e4" in text) == (200, True)
    assert await b.metric("ejections_total") == 0
    assert not other.seen


async def test_unreachable_instances_are_tried_up_to_the_limit(bench: MakeBench) -> None:
    """No engine received the request, so another attempt is harmless."""
    b = await bench()
    engines = [await b.engine(f"e{n}") for n in range(4)]
    for engine in engines[:2]:
        await engine.stop()
    b.route(RouteGroup("g", 1.0, tuple(engine.endpoint for engine in engines)))
    assert (await b.post())[0] == 200
    assert await b.metric("ejections_total") == 2


async def test_a_hung_engine_is_ejected_and_its_requests_end(bench: MakeBench) -> None:
    """Its health checks pass, so only a token probe readmits it. Its requests may be the cause, so
    no other engine gets them.
    """
    b = await bench(speed=100.0, stall_s=1.0)
    hung, good = await b.engine("hung"), await b.engine("good")
    hung.mode = "hang"
    b.route(RouteGroup("g", 1.0, (hung.endpoint, good.endpoint)))
    status, _ = await b.post()
    assert status == 504
    assert not good.seen
    router = b.gateway.table.routers["chat"]
    assert router.ejected() == {hung.endpoint}
    asked = len(hung.seen)
    await until(lambda: len(hung.seen) > asked)  # a token probe
    assert router.ejected() == {hung.endpoint}
    assert (await b.post())[0] == 200
    hung.mode = "ok"


@pytest.mark.parametrize("sign", ["a token for a probe", "progress in its metrics"])
async def test_long_answers_without_streaming_are_not_a_hang(bench: MakeBench, sign: str) -> None:
    """Without streaming, a healthy engine sends nothing until its answer is complete."""
    b = await bench(speed=100.0, stall_s=1.0)
    engine = await b.engine("e")
    b.route(RouteGroup("g", 1.0, (engine.endpoint,)))
    engine.mode = "gate"
    waiting = asyncio.create_task(b.post(stream=False))
    await until(lambda: len(engine.seen) == 1)
    if sign == "a token for a probe":
        engine.mode = "ok"
    else:
        engine.progresses = True
    await asyncio.sleep(2.5)  # the limit is at least 1 real s
    assert not waiting.done()
    assert not b.gateway.table.routers["chat"].ejected()
    engine.gate.set()
    assert (await waiting)[0] == 200


async def test_a_request_that_waits_long_at_a_busy_engine_is_not_cancelled(
    bench: MakeBench,
) -> None:
    """Silence for one request is a sign of overload. An engine hangs only if it is silent for all
    of its requests.
    """
    b = await bench(speed=100.0, stall_s=1.0)
    engine = await b.engine("e")
    b.route(RouteGroup("g", 1.0, (engine.endpoint,)))
    engine.mode = "gate"
    waiting = asyncio.create_task(b.post())
    await until(lambda: len(engine.seen) == 1)
    engine.mode = "ok"
    began = asyncio.get_running_loop().time()
    while asyncio.get_running_loop().time() < began + 1.3:  # the limit is at least 1 real s
        await b.post()
    assert not waiting.done()
    assert not b.gateway.table.routers["chat"].ejected()
    engine.gate.set()
    assert (await waiting)[0] == 200


async def test_400_and_429_of_an_engine_are_passed_on(bench: MakeBench) -> None:
    b = await bench()
    engine = await b.engine("e")
    b.route(RouteGroup("g", 1.0, (engine.endpoint,)))
    for code in (400, 429):
        engine.mode = f"status:{code}"
        status, text = await b.post()
        assert (status, json.loads(text)["error"]["message"]) == (code, "as told")
    await until(lambda: total(b.link.records, "refused") == 1)
    await until(lambda: total(b.link.records, "withdrawn") == 1)  # the client's fault
    assert total(b.link.records, "failures") == 0
    assert await b.metric("ejections_total") == 0
