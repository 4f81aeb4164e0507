"""One model name for several models: selection by score, and failing scorers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from tests.integration.gateway.gateway_bench import Bench, FakeEngine, MakeBench, until
from topics.records import (
    Endpoint,
    PromptRule,
    RouteGroup,
    Routes,
    ScoreSource,
    ScoreSplit,
)
from topics.telemetry import UNCLASSED

HEADER = ScoreSource("X-Score", low=-1.0, high=2.0)


async def two_models(
    b: Bench, source: ScoreSource = HEADER, **split: Any
) -> tuple[FakeEngine, FakeEngine]:
    """Apply routes of `auto`.

    Scores below 0.5 go to the small model. Other and missing scores go to the large one.
    """
    small, large = await b.engine("s", model="small"), await b.engine("l", model="large")
    for engine in (small, large):
        b.route(RouteGroup(f"g-{engine.name}", 1.0, (engine.endpoint,)), model=engine.model)
    fields: dict[str, Any] = {"unscored": "large", "source": source, **split}
    made = ScoreSplit(("small", "large"), (0.25, 0.5, 0.75), (2,), **fields)
    b.gateway.table.apply(Routes("auto", 1, 1, 0, 0.0, 0.0, split=made))
    return small, large


async def ask(b: Bench, headers: dict[str, str] | None = None, **changes: Any) -> str:
    """The model that the answer names."""
    url = b.gateway.url + ("/v1/chat/completions" if "messages" in changes else "/v1/completions")
    body = b.body(**{"model": "auto", **changes})
    async with b.http.post(url, json=body, headers=headers or {}) as answer:
        assert answer.status == 200, await answer.text()
        await answer.read()
        return answer.headers["X-Shoal-Model"]


@pytest.mark.parametrize("stream", [True, False])
async def test_the_score_chooses_the_model_and_the_engine_gets_its_name(
    bench: MakeBench, stream: bool
) -> None:
    b = await bench()
    small, large = await two_models(b)
    assert await ask(b, {"X-Score": "0.49"}, stream=stream) == "small"
    assert await ask(b, {"X-Score": "0.5"}, stream=stream) == "large"
    assert await ask(b, stream=stream) == "large"
    assert [body["model"] for body in small.seen + large.seen] == ["small", "large", "large"]
    assert small.seen[0]["prompt"] == "a a a"
    assert small.seen[0]["max_tokens"] == 5
    async with b.http.get(b.gateway.url + "/v1/models") as answer:
        listed = {entry["id"] for entry in (await answer.json())["data"]}
    assert listed == {"auto", "small", "large"}


async def test_telemetry_has_the_score_classes_and_the_answering_model(bench: MakeBench) -> None:
    """Planning needs the distribution of scores. The counts of each model include its requests from
    `auto`.
    """
    b = await bench()
    await two_models(b)
    for score in ("0.1", "0.3", "0.3", "0.9", "high", ""):
        await ask(b, {"X-Score": score} if score else None)
    b.gateway.reporter.end_span(b.gateway.reporter._clock.now_ms())
    await b.gateway.reporter.flush()
    by_model: dict[str, list[Any]] = {}
    for record in b.link.records:
        by_model.setdefault(record.model, []).append(record)
    classes: dict[int, int] = {}
    sent: dict[str, int] = {}
    for record in by_model["auto"]:
        for number, count in record.classes.items():
            classes[number] = classes.get(number, 0) + count
        for model, count in record.sent.get("all", {}).items():
            sent[model] = sent.get(model, 0) + count
    assert classes == {0: 1, 1: 2, 3: 1, UNCLASSED: 2}
    assert sent == {"small": 3, "large": 3}
    assert sum(record.arrivals for record in by_model["auto"]) == 6
    assert sum(record.completions for record in by_model["auto"]) == 6
    assert sum(record.arrivals for record in by_model["small"]) == 3
    assert await b.metric("scored_total") == 6


async def test_rules_on_the_prompt_give_a_score(bench: MakeBench) -> None:
    b = await bench()
    rules = (
        PromptRule(0.9, longer_than=100),
        PromptRule(0.8, code=True),
        PromptRule(0.7, languages=("de",)),
        PromptRule(0.1),
    )
    await two_models(b, ScoreSource("", rules))
    assert await ask(b, prompt="What is it?") == "small"
    assert await ask(b, prompt="word " * 200) == "large"
    assert await ask(b, prompt="Fix this:\ndef f(x):\n  return y") == "large"
    german = [{"role": "user", "content": [{"type": "text", "text": "Was ist das und wie?"}]}]
    assert await ask(b, messages=german) == "large"
    english = [{"role": "user", "content": "What is this and how?"}]
    assert await ask(b, messages=english) == "small"


async def test_another_model_answers_for_lack_of_capacity_only_if_declared(
    bench: MakeBench,
) -> None:
    b = await bench()
    small, _ = await two_models(b, fallback=True)
    small.mode = "gate"
    bounded = Endpoint(small.name, small.endpoint.address, slots=1)
    b.route(RouteGroup("g-s", 1.0, (bounded,)), model="small", generation=2)
    first = asyncio.create_task(ask(b, {"X-Score": "0.1"}))
    await until(lambda: bool(small.seen))
    assert await ask(b, {"X-Score": "0.1"}) == "large"
    assert await b.metric("fallbacks_total") == 1
    split = b.gateway.table.routers["auto"].routes
    assert split is not None
    assert split.split is not None
    strict = ScoreSplit(("small", "large"), (0.25, 0.5, 0.75), (2,), "large", source=HEADER)
    b.gateway.table.apply(Routes("auto", 2, 1, 0, 0.0, 0.0, split=strict))
    waiting = asyncio.create_task(ask(b, {"X-Score": "0.1"}))
    await until(lambda: b.gateway.proxy.admission.waiting_count("small") == 1)
    small.gate.set()
    assert await first == await waiting == "small"


async def test_a_model_without_any_instance_is_replaced_if_declared(bench: MakeBench) -> None:
    b = await bench()
    await two_models(b, fallback=True)
    b.route(model="large", generation=2)  # No instance is ready.
    assert await ask(b, {"X-Score": "0.9"}) == "small"


Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def scorer(b: Bench, answer: Answer) -> str:
    app = web.Application(client_max_size=1 << 25)
    app.router.add_post("/score", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.01)
    await runner.setup()
    b.stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return f"http://127.0.0.1:{runner.addresses[0][1]}/score"


async def test_the_users_scorer_is_asked_with_the_prompt(bench: MakeBench) -> None:
    b = await bench()
    asked: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(await request.json())
        return web.json_response({"score": 0.1, "more": "is ignored"})

    url = await scorer(b, answer)
    await two_models(b, ScoreSource("X-Score", (), url, 2000.0, -1.0, 2.0))
    assert await ask(b, prompt="x" * 20_000) == "small"
    assert await ask(b, {"X-Score": "0.9"}) == "large"  # The header has priority.
    assert len(asked) == 1
    assert asked[0]["service"] == "auto"
    assert asked[0]["prompt"] == "x" * 16_000
    assert asked[0]["tokens"] == 5000


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b'{"score": NaN}', "invalid"),
        (b'{"score": 1e9}', "invalid"),
        (b'{"score": "0.1"}', "invalid"),
        (b'{"score": true}', "invalid"),
        (b'{"score": null}', "invalid"),
        (b"[0.1]", "invalid"),
        (b"0.1", "invalid"),
        (b"", "invalid"),
        (b'{"other": 0.1}', "invalid"),
        (b"[" * 60_000, "invalid"),
        (b'{"score": 0.1, "x": "' + b"y" * 2_000_000 + b'"}', "connection"),
        (500, "status"),
        (204, "status"),
    ],
)
async def test_an_invalid_score_is_ignored(bench: MakeBench, said: bytes | int, why: str) -> None:
    """The request goes to the model for requests without a score. The reason is counted."""
    b = await bench()

    async def answer(request: web.Request) -> web.Response:
        if isinstance(said, int):
            return web.Response(status=said)
        return web.Response(body=said, content_type="application/json")

    url = await scorer(b, answer)
    await two_models(b, ScoreSource("", (), url, 2000.0, -1.0, 2.0))
    assert await ask(b) == "large"
    assert await b.metric(f"scorer_{why}") == 1


async def test_a_slow_scorer_delays_few_requests_by_its_limit(bench: MakeBench) -> None:
    """After several time-outs, requests skip the scorer until it answers again."""
    b = await bench()
    slow = True

    async def answer(request: web.Request) -> web.Response:
        if slow:
            await asyncio.sleep(30.0)
        return web.json_response({"score": 0.1})

    url = await scorer(b, answer)
    await two_models(b, ScoreSource("", (), url, 50.0, -1.0, 2.0))
    loop = asyncio.get_running_loop()
    began = loop.time()
    for _ in range(40):
        assert await ask(b) == "large"
    assert loop.time() - began < 60.0  # less than 40 x 30 s
    assert await b.metric("scorer_timeout") == 5
    assert await b.metric("scorer_resting") == 35
    slow = False
    b.gateway._app.model_selector.scorer._retry_at_s = 0.0  # The pause of the scorer is over.
    assert await ask(b) == "small"
    assert await ask(b) == "small"


async def test_requests_are_served_without_a_scorer(bench: MakeBench) -> None:
    b = await bench()
    await two_models(b, ScoreSource("", (), "http://127.0.0.1:1/score", 500.0, -1.0, 2.0))
    assert await asyncio.gather(*(ask(b) for _ in range(20))) == ["large"] * 20
    assert await b.metric("scorer_connection") >= 1


async def test_a_scorer_that_sends_slowly_is_stopped_at_the_limit(bench: MakeBench) -> None:
    b = await bench()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(100):
            await response.write(b" ")
            await asyncio.sleep(0.02)
        return response

    url = await scorer(b, answer)
    await two_models(b, ScoreSource("", (), url, 100.0, -1.0, 2.0))
    assert await ask(b) == "large"
    assert await b.metric("scorer_timeout") == 1


async def test_a_heavy_body_is_scored_too(bench: MakeBench) -> None:
    """The parser process parses the body."""
    b = await bench()
    small, _ = await two_models(b, ScoreSource("", (PromptRule(0.1, longer_than=1000),)))
    messages = [{"role": "user", "content": "word " * 20}] * 8_000
    assert await ask(b, messages=messages) == "small"
    assert json.dumps(small.seen[0]["messages"]) == json.dumps(messages)
