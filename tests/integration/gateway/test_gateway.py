"""The gateway in front of engines that work, fail, hang and vanish."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.integration.gateway.gateway_bench import MakeBench, total, until
from topics.records import Endpoint, RouteGroup, Routes


async def test_a_stream_passes_through_and_usage_stays_inside(bench: MakeBench) -> None:
    """The gateway asks for usage; a client that did not ask does not see it."""
    b = await bench()
    engine = await b.engine("e")
    b.route(RouteGroup("g", 1.0, (engine.endpoint,)))
    status, text = await b.post()
    assert status == 200
    assert [f"e{n}" in text for n in range(5)] == [True] * 5
    assert text.endswith("data: [DONE]\n\n")
    assert "usage" not in text
    assert engine.seen[0]["stream_options"] == {"include_usage": True}
    _, text = await b.post(stream_options={"include_usage": True})
    assert '"completion_tokens": 5' in text


async def test_chat_and_plain_answers(bench: MakeBench) -> None:
    b = await bench()
    engine = await b.engine("e")
    b.route(RouteGroup("g", 1.0, (engine.endpoint,)))
    status, text = await b.post(
        "/v1/chat/completions", messages=[{"role": "user", "content": "a a"}], stream=False
    )
    assert (status, json.loads(text)["usage"]["completion_tokens"]) == (200, 5)


async def test_only_listed_paths_and_openai_errors(bench: MakeBench) -> None:
    b = await bench()
    b.route()
    for method, path, status in (
        ("POST", "/v1/responses", 404),
        ("GET", "/v1/embeddings", 405),
        ("POST", "/abort_requests", 404),
        ("GET", "/v1/completions", 405),
        ("GET", "/v1/models", 200),
        ("GET", "/health", 200),
    ):
        async with b.http.request(method, b.gateway.url + path) as answer:
            assert answer.status == status, path
            if status >= 400:
                assert (await answer.json())["error"]["code"] == status
    async with b.http.get(b.gateway.url + "/v1/models") as answer:
        assert [model["id"] for model in (await answer.json())["data"]] == ["chat"]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"{", "not JSON"),
        (b"[]", "object"),
        (b"{}", "model"),
        (b'{"model": 3}', "model"),
        (b'{"model": "chat", "stream": "yes"}', "stream"),
        (b'{"model": "chat", "kv_transfer_params": {}}', "kv_transfer_params"),
    ],
)
async def test_unreadable_requests_are_400(bench: MakeBench, data: bytes, said: str) -> None:
    b = await bench()
    b.route()
    async with b.http.post(b.gateway.url + "/v1/completions", data=data) as answer:
        assert answer.status == 400
        assert said in (await answer.json())["error"]["message"]


async def test_too_large_a_body_is_413(bench: MakeBench) -> None:
    b = await bench(max_body_bytes=1000)
    b.route()
    url = b.gateway.url + "/v1/completions"
    async with b.http.post(url, data=b"x" * 1001) as answer:
        assert answer.status == 413
        assert (await answer.json())["error"]["code"] == 413

    async def endless() -> object:
        for _ in range(20):
            yield b"x" * 100

    async with b.http.post(url, data=endless()) as answer:  # no Content-Length to go by
        assert answer.status == 413


async def test_unknown_model_is_404(bench: MakeBench) -> None:
    b = await bench(speed=100.0)
    b.route()
    status, text = await b.post(model="nope")
    assert status == 404
    assert json.loads(text)["error"]["type"] == "not_found_error"


async def test_a_request_waits_for_a_model_that_wakes_up(bench: MakeBench) -> None:
    """The wait is part of its TTFT."""
    b = await bench()
    engine = await b.engine("e")
    b.route()
    waiting = asyncio.create_task(b.post())
    await until(lambda: b.gateway.meters.get("chat") is not None)
    await until(lambda: total(b.link.records, "arrivals") == 1)
    b.route(RouteGroup("g", 1.0, (engine.endpoint,)), generation=2)
    status, _ = await waiting
    assert status == 200
    await until(lambda: total(b.link.records, "completions") == 1)
    assert total(b.link.records, "refused") == 0


async def test_no_instance_in_time_is_503_and_refused(bench: MakeBench) -> None:
    b = await bench(speed=50.0, hold_s=2.0)
    b.route()
    status, text = await b.post()
    assert status == 503
    assert json.loads(text)["error"]["type"] == "no_instance"
    await until(lambda: total(b.link.records, "refused") == 1)


async def test_no_routes_at_all_is_503(bench: MakeBench) -> None:
    b = await bench(speed=50.0, hold_s=2.0)
    assert (await b.post())[0] == 503


@pytest.mark.parametrize("mode", ["status:503", "status:500", "error-after:0", "status:404"])
async def test_errors_of_an_engine_that_lives_on_are_retried(bench: MakeBench, mode: str) -> None:
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
    assert await b.metric("retries_total") == 1  # only the first one found out
    await dead.start(port)
    router = b.gateway.table.routers["chat"]
    await until(lambda: not router.ejected())
    texts = [(await b.post())[1] for _ in range(2)]
    assert any("dead0" in text for text in texts)
    assert await b.metric("readmissions_total") == 1


async def test_an_unhealthy_engine_stays_out(bench: MakeBench) -> None:
    b = await bench(speed=100.0, hold_s=10.0)
    engine = await b.engine("e")
    engine.mode, engine.healthy = "status:503", False
    b.route(RouteGroup("g", 1.0, (engine.endpoint,)))
    status, _ = await b.post()
    assert status == 503
    assert len(engine.seen) == 1  # held after its first try, and never sent there again


async def test_killed_in_the_middle_ends_visibly_and_counts(bench: MakeBench) -> None:
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
    assert not other.seen  # half an answer is never continued elsewhere
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
async def test_a_request_that_an_engine_died_of_goes_to_no_other(
    bench: MakeBench, stream: bool
) -> None:
    """The connection broke after the request was sent: it may be the cause."""
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


async def test_an_engine_that_says_500_and_dies_had_the_request_that_killed_it(
    bench: MakeBench,
) -> None:
    """vLLM's API server answers 500 when its core has died, and ends afterwards."""
    b = await bench(verify_real_s=0.05)
    dying, other = await b.engine("dying"), await b.engine("other")
    dying.mode, dying.healthy = "status:500", False
    b.route(RouteGroup("g", 1.0, (dying.endpoint, other.endpoint)))
    status, _ = await b.post()
    assert status == 502
    assert not other.seen
    assert b.gateway.table.routers["chat"].ejected() == {dying.endpoint}


async def test_a_request_that_is_always_answered_500_ejects_nobody(bench: MakeBench) -> None:
    """Nobody else could answer it either, so it says nothing about an engine."""
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


async def test_an_engine_that_fails_what_others_answer_is_ejected(bench: MakeBench) -> None:
    """Three different requests in a row; it says that it is healthy all the while."""
    b = await bench(verify_real_s=0.02)
    bad, good = await b.engine("bad"), await b.engine("good")
    bad.mode = "status:500"
    b.route(RouteGroup("g", 1.0, (bad.endpoint, good.endpoint)))
    answers = [await b.post() for _ in range(6)]
    assert [status for status, _ in answers] == [200] * 6
    assert len([body for body in bad.seen if body["prompt"] == "a a a"]) == 3
    assert b.gateway.table.routers["chat"].ejected() == {bad.endpoint}


async def test_a_kept_connection_that_the_engine_closed_is_no_loss(bench: MakeBench) -> None:
    """Idle connections end; that says nothing about the engine, which is asked once more."""
    b = await bench()
    engine, other = await b.engine("e"), await b.engine("other")
    b.route(RouteGroup("g", 1.0, (engine.endpoint,)))
    assert (await b.post())[0] == 200
    engine.mode = "cut-kept"
    status, text = await b.post()
    assert (status, "e4" in text) == (200, True)
    assert await b.metric("ejections_total") == 0
    assert not other.seen


async def test_unreachable_instances_are_tried_up_to_the_bound(bench: MakeBench) -> None:
    """Nobody got the request, so asking the next one harms nobody."""
    b = await bench()
    engines = [await b.engine(f"e{n}") for n in range(4)]
    for engine in engines[:2]:
        await engine.stop()
    b.route(RouteGroup("g", 1.0, tuple(engine.endpoint for engine in engines)))
    assert (await b.post())[0] == 200
    assert await b.metric("ejections_total") == 2


async def test_a_hung_engine_is_given_up_and_ejected(bench: MakeBench) -> None:
    """It says that it is healthy all the while, so only making a token brings it back. What it
    held may be what stopped it and goes nowhere else."""
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
    await until(lambda: len(hung.seen) > asked)  # a probe asked it for a token
    assert router.ejected() == {hung.endpoint}
    assert (await b.post())[0] == 200
    hung.mode = "ok"


@pytest.mark.parametrize("sign", ["a token for a probe", "progress in its metrics"])
async def test_long_silent_answers_make_no_engine_hang(bench: MakeBench, sign: str) -> None:
    """Answers that are not streamed say nothing until they are done, however healthy it is."""
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
    await asyncio.sleep(2.5)  # the limit is 1 real s at the least
    assert not waiting.done()
    assert not b.gateway.table.routers["chat"].ejected()
    engine.gate.set()
    assert (await waiting)[0] == 200


async def test_a_request_that_waits_long_on_a_busy_engine_is_left_alone(bench: MakeBench) -> None:
    """Silence on one request is overload; only silence on all of them is a hang."""
    b = await bench(speed=100.0, stall_s=1.0)
    engine = await b.engine("e")
    b.route(RouteGroup("g", 1.0, (engine.endpoint,)))
    engine.mode = "gate"
    waiting = asyncio.create_task(b.post())
    await until(lambda: len(engine.seen) == 1)
    engine.mode = "ok"
    began = asyncio.get_running_loop().time()
    while asyncio.get_running_loop().time() < began + 1.3:  # the limit is 1 real s at the least
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
    await until(lambda: total(b.link.records, "withdrawn") == 1)  # its request, not our service
    assert total(b.link.records, "failures") == 0
    assert await b.metric("ejections_total") == 0


async def test_prefill_then_decode(bench: MakeBench) -> None:
    """The prefill instance makes one token; its parameters go unchanged to the decode instance."""
    b = await bench()
    prefill, decode = await b.engine("p"), await b.engine("d")
    b.route(RouteGroup("g", 1.0, prefill=(prefill.endpoint,), decode=(decode.endpoint,)))
    status, text = await b.post(min_tokens=3)
    assert status == 200
    assert "d4" in text
    asked = prefill.seen[0]
    assert (asked["max_tokens"], asked["stream"], "min_tokens" in asked) == (1, False, False)
    assert asked["kv_transfer_params"]["do_remote_decode"] is True
    assert asked["kv_transfer_params"]["do_remote_prefill"] is False
    given = decode.seen[0]
    assert given["kv_transfer_params"] == {"do_remote_prefill": True, "remote_host": "p"}
    assert (given["max_tokens"], given["prompt"]) == (5, "a a a")
    ids = [engine.headers[0]["X-Request-Id"] for engine in (prefill, decode)]
    assert ids[0] == ids[1]


@pytest.mark.parametrize(
    "more",
    [
        {"prompt": ["a", "b"]},
        {"prompt": [[1, 2], [3]]},
        {"n": 2},
        {"use_beam_search": True, "n": 3},
    ],
)
async def test_what_cannot_be_handed_over_is_served_in_place(
    bench: MakeBench, more: dict[str, object]
) -> None:
    """One kv_transfer_params describes one prompt: with it, a second answer would be wrong."""
    b = await bench()
    prefill, decode = await b.engine("p"), await b.engine("d")
    b.route(RouteGroup("g", 1.0, prefill=(prefill.endpoint,), decode=(decode.endpoint,)))
    for stream in (False, True):
        status, _ = await b.post(stream=stream, **more)
        assert status == 200
    assert not prefill.seen
    assert ["kv_transfer_params" in body for body in decode.seen] == [False, False]
    assert all(body[key] == value for body in decode.seen for key, value in more.items())


async def test_an_idle_decode_instance_serves_whole_while_prefill_is_busy(
    bench: MakeBench,
) -> None:
    """Opportunistic scheduling (Cauchy 3.4.2)."""
    b = await bench()
    prefill, decode = await b.engine("p"), await b.engine("d")
    prefill.mode = "gate"
    b.route(RouteGroup("g", 1.0, prefill=(prefill.endpoint,), decode=(decode.endpoint,)))
    first = asyncio.create_task(b.post())
    await until(lambda: len(prefill.seen) == 1)
    assert (await b.post())[0] == 200
    assert "kv_transfer_params" not in decode.seen[0]
    prefill.gate.set()
    assert (await first)[0] == 200
    assert "kv_transfer_params" in decode.seen[1]
    assert b.gateway.table.routers["chat"].in_flight(decode.endpoint) == 0


async def test_the_answer_names_its_instance_and_ids_go_through(bench: MakeBench) -> None:
    b = await bench()
    engine = await b.engine("e")
    b.route(RouteGroup("g", 1.0, (engine.endpoint,)))
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    given = {"X-Request-Id": "mine-1", "traceparent": trace, "tracestate": "a=b"}
    url = b.gateway.url + "/v1/completions"
    async with b.http.post(url, json=b.body(), headers=given) as answer:
        assert answer.headers["X-Request-Id"] == "mine-1"
        assert answer.headers["X-Shoal-Instance"] == "e"
        assert answer.headers["X-Shoal-Model"] == "chat"
    seen = engine.headers[0]
    assert [seen[name] for name in given] == list(given.values())
    bad = {"X-Request-Id": "a b", "traceparent": "00-zz"}
    async with b.http.post(url, json=b.body(), headers=bad) as answer:
        assert answer.headers["X-Request-Id"].startswith("gateway-1-")
    assert "traceparent" not in engine.headers[1]


async def test_embeddings_pass_through(bench: MakeBench) -> None:
    b = await bench()
    engine = await b.engine("e")
    b.route(RouteGroup("g", 1.0, (engine.endpoint,)))
    body = {"model": "chat", "input": ["a", "b"], "encoding_format": "float"}
    async with b.http.post(b.gateway.url + "/v1/embeddings", json=body) as answer:
        assert answer.status == 200
    assert engine.seen == [body]


async def test_models_are_found_by_any_of_their_names(bench: MakeBench) -> None:
    b = await bench()
    engine = await b.engine("e")
    group = RouteGroup("g", 1.0, (engine.endpoint,))
    full = "meta-llama/Llama-3.1-8B-Instruct"
    b.gateway.table.apply(Routes("chat", 1, 1, 0, 2000.0, 60.0, (group,), aliases=(full,)))
    for name in ("chat", full):
        async with b.http.get(f"{b.gateway.url}/v1/models/{name}") as answer:
            assert (answer.status, (await answer.json())["id"]) == (200, "chat")
        assert (await b.post(model=name))[0] == 200
    assert [body["model"] for body in engine.seen] == ["chat", "chat"]
    async with b.http.get(b.gateway.url + "/v1/models/nobody") as answer:
        assert answer.status == 404


async def test_a_withdrawn_model_is_gone(bench: MakeBench) -> None:
    """What runs is finished; what waits and what comes is told that there is no such model."""
    b = await bench()
    engine = await b.engine("e")
    engine.mode = "gate"
    one = Endpoint("e", engine.endpoint.address, slots=1)
    b.route(RouteGroup("g", 1.0, (one,)))
    b.route(model="other")
    running = asyncio.create_task(b.post())
    await until(lambda: len(engine.seen) == 1)
    waiting = asyncio.create_task(b.post())
    await until(lambda: b.gateway.relay.admission.waiting("chat") == 1)
    b.gateway.table.withdraw("chat")
    assert (await waiting)[0] == 503
    engine.gate.set()
    assert (await running)[0] == 200
    b.gateway.table._settled_at = 0.0
    assert (await b.post())[0] == 404


async def test_a_cold_start_is_waited_for_and_a_no_says_when_to_come_back(
    bench: MakeBench,
) -> None:
    """As long as an instance takes to start, whatever hold_s says."""
    b = await bench(speed=50.0, hold_s=1.0)
    b.gateway.table.apply(Routes("chat", 1, 1, 0, 2000.0, 60.0, start_s=20.0))
    b.gateway.table.apply(Routes("fast", 1, 1, 0, 2000.0, 60.0))
    url = b.gateway.url + "/v1/completions"
    async with b.http.post(url, json=b.body(model="fast")) as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
    began = asyncio.get_running_loop().time()
    async with b.http.post(url, json=b.body()) as answer:
        assert answer.status == 503
    assert asyncio.get_running_loop().time() - began > 0.7


async def test_decode_that_lost_the_kv_makes_the_whole_flow_start_again(bench: MakeBench) -> None:
    b = await bench(verify_real_s=0.05)
    prefill = await b.engine("p")
    bad, good = await b.engine("bad"), await b.engine("good")
    bad.mode = "status:500"
    pair = RouteGroup("g", 1.0, prefill=(prefill.endpoint,), decode=(bad.endpoint, good.endpoint))
    b.route(pair)
    status, text = await b.post()
    assert status == 200
    assert "good0" in text
    assert len(prefill.seen) == 2


async def test_where_kv_cannot_be_had_the_prompt_is_computed_again(bench: MakeBench) -> None:
    """By the decode instance itself, whose fault it is not; the prefill instance is left alone."""
    b = await bench(verify_real_s=0.02)
    prefill, decode = await b.engine("p"), await b.engine("d")
    b.route(RouteGroup("g", 1.0, prefill=(prefill.endpoint,), decode=(decode.endpoint,)))
    decode.mode = "lost-kv"
    answers = await asyncio.gather(*(b.post() for _ in range(8)))
    assert [status for status, _ in answers] == [200] * 8
    handed_over = len(prefill.seen)
    assert 0 < handed_over <= 8
    assert ["kv_transfer_params" in asked for asked in decode.seen].count(False) == 8
    assert len({headers["X-Request-Id"] for headers in decode.headers}) == 8 + handed_over
    assert await b.metric("recomputed_total") == handed_over
    assert await b.metric("ejections_total") == 0


async def test_a_stream_that_begins_with_an_error_is_computed_again(bench: MakeBench) -> None:
    b = await bench(verify_real_s=0.02)
    prefill, decode = await b.engine("p"), await b.engine("d")
    b.route(RouteGroup("g", 1.0, prefill=(prefill.endpoint,), decode=(decode.endpoint,)))
    decode.mode = "lost-kv-event"
    status, text = await b.post(stream=True)
    assert status == 200
    assert text.count("data: ") == 6
    assert "error" not in text


async def test_an_instance_never_hands_its_kv_over_to_itself(bench: MakeBench) -> None:
    """Roles change between prefill and decode: it has the KV in its prefix cache."""
    b = await bench()
    one, other = await b.engine("one"), await b.engine("other")
    one.mode = "gate"
    b.route(RouteGroup("g", 1.0, prefill=(one.endpoint,), decode=(other.endpoint,)))
    asking = asyncio.create_task(b.post())
    await until(lambda: len(one.seen) == 1)
    flipped = RouteGroup("g", 1.0, prefill=(other.endpoint,), decode=(one.endpoint,))
    b.route(flipped, generation=2)
    one.gate.set()
    status, text = await asking
    assert (status, "one0" in text) == (200, True)
    assert "kv_transfer_params" not in one.seen[1]
    assert not other.seen


async def test_a_client_that_leaves_frees_the_engine(bench: MakeBench) -> None:
    """Left before its limit has passed: no failure of ours."""
    b = await bench(speed=1.0)
    engine = await b.engine("e")
    engine.mode = "gate"
    b.route(RouteGroup("g", 1.0, (engine.endpoint,)))
    leaving = asyncio.create_task(b.post())
    await until(lambda: bool(engine.seen))
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    await asyncio.wait_for(engine.aborted.wait(), 5.0)
    await until(lambda: total(b.link.records, "withdrawn") == 1)
    assert total(b.link.records, "failures") == 0
    assert await b.metric("client_aborts_total") == 1
