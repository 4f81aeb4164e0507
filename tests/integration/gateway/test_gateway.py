"""The gateway in front of working engines: requests, answers, models and waiting requests."""

from __future__ import annotations

import asyncio
import json

import pytest

from autoscaler.serving.request_router import RouteUpdate
from tests.hang_limit import HANG_S
from tests.integration.gateway.gateway_bench import MakeBench, total, until
from topics.records import Endpoint, RouteGroup, Routes


async def test_a_stream_is_passed_on_without_unrequested_usage(bench: MakeBench) -> None:
    """The gateway requests usage from engines. A client that did not request it does not get it."""
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
        ("POST", "/v1/audio/speech", 404),
        ("GET", "/v1/responses/resp_1", 404),
        ("GET", "/tokenize", 405),
        ("GET", "/v1/embeddings", 405),
        ("POST", "/abort_requests", 404),
        ("GET", "/v1/completions", 405),
        ("GET", "/v1/models", 200),
        ("GET", "/health", 200),
        ("GET", "/readyz", 200),
        ("GET", "/livez", 200),
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

    async with b.http.post(url, data=endless()) as answer:  # The request has no Content-Length.
        assert answer.status == 413


async def test_unknown_model_is_404(bench: MakeBench) -> None:
    b = await bench(speed=100.0)
    b.route()
    status, text = await b.post(model="nope")
    assert status == 404
    assert json.loads(text)["error"]["type"] == "not_found_error"


async def test_a_request_waits_for_a_model_that_wakes_up(bench: MakeBench) -> None:
    """The TTFT of the request includes the wait."""
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


async def test_no_instance_in_time_is_503_and_counts_as_refused(bench: MakeBench) -> None:
    b = await bench(speed=50.0, hold_s=2.0)
    b.route()
    status, text = await b.post()
    assert status == 503
    assert json.loads(text)["error"]["type"] == "no_instance"
    await until(lambda: total(b.link.records, "refused") == 1)


async def test_no_routes_at_all_is_503(bench: MakeBench) -> None:
    b = await bench(speed=50.0, hold_s=2.0)
    assert (await b.post())[0] == 503


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


async def test_a_withdrawn_model_is_not_served_any_more(bench: MakeBench) -> None:
    """Running requests finish. Waiting and new ones get 404 at once, although they would wait for a
    declared model, and although routes of other models may still arrive. The withdrawal outlasts a
    restart. Once the name is final, the gateway keeps nothing of it.
    """
    b = await bench(declared_models={"other": "other"})
    engine = await b.engine("e")
    engine.mode = "gate"
    one = Endpoint("e", engine.endpoint.address, slots=1)
    b.route(RouteGroup("g", 1.0, (one,)))
    b.route(model="other")
    table = b.gateway.table
    running = asyncio.create_task(b.post())
    await until(lambda: len(engine.seen) == 1)
    waiting = asyncio.create_task(b.post())
    await until(lambda: b.gateway.proxy.admission.waiting_count("chat") == 1)
    table._settled_s = float("inf")
    for model in ("chat", "other"):
        table.apply(Routes(model, 2, 1, 0, 2000.0, 60.0, withdrawn=True))
    assert (await waiting)[0] == 404
    for model in ("chat", "other"):
        began = asyncio.get_running_loop().time()
        assert (await b.post(model=model))[0] == 404
        assert asyncio.get_running_loop().time() - began < 1.0, "it does not wait"
    async with b.http.get(b.gateway.url + "/v1/models") as answer:
        assert (await answer.json())["data"] == []
    assert table.apply(Routes("chat", 1, 1, 0, 2000.0, 60.0)) is RouteUpdate.STALE
    engine.gate.set()
    assert (await running)[0] == 200
    for model in ("chat", "other"):
        table.finalize(model)
    await until(lambda: "chat" not in b.gateway.meters)
    assert not table.leaving and not table.routers
    assert [routes.model for routes in table.withdrawn] == ["other"], "the options declare it"


async def test_requests_wait_for_a_cold_start_and_refusals_have_retry_after(
    bench: MakeBench,
) -> None:
    """Requests wait as long as an instance takes to start, even if hold_s is shorter."""
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


async def test_a_client_that_leaves_frees_the_engine(bench: MakeBench) -> None:
    """The client disconnects before the TTFT limit, so its request does not count as a failure."""
    b = await bench(speed=1.0)
    engine = await b.engine("e")
    engine.mode = "gate"
    b.route(RouteGroup("g", 1.0, (engine.endpoint,)))
    leaving = asyncio.create_task(b.post())
    await until(lambda: bool(engine.seen))
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    await asyncio.wait_for(engine.aborted.wait(), HANG_S)
    await until(lambda: total(b.link.records, "withdrawn") == 1)
    assert total(b.link.records, "failures") == 0
    assert await b.metric("client_aborts_total") == 1
