"""Engines behind the gateway, simulated and real: hand-over, role switches, drains, failures,
clients.

A role switch here follows the strategy `routing`: the same instances get other routes.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import aiohttp
import openai
import pytest

from autoscaler.serving.routing_policies import RoutingPolicy, WithinCombo
from executors.engines.metrics_text import parse_load
from executors.gateway.gateway_server import Gateway
from executors.gateway.gateway_settings import Clock, GatewaySettings
from tests.contract.engines.harness import KEY, REAL, EngineUnderTest, prompt
from tests.hang_limit import HANG_S
from tests.integration.gateway.gateway_bench import Bench, FakeLink
from topics.records import Endpoint, RouteGroup
from topics.time_base import TimeBase

_RATE = 4.0 if REAL else 40.0  # requests/s
_BETWEEN = 12  # requests that end between two changes
# Every request is handed over, even if an instance is idle.
_APART = RoutingPolicy(inside=WithinCombo.ROUND_ROBIN)


class Front(Bench):
    """A gateway in front of engines that serve the model `tiny`."""

    _generations = itertools.count(1)
    in_flight = begun = 0

    def __init__(self, stack: AsyncExitStack, link: FakeLink) -> None:
        super().__init__(stack, link)
        self.outcomes: list[str] = []

    def serve(self, *groups: RouteGroup) -> None:
        """Apply these routes from now on."""
        self.route(*groups, model="tiny", generation=next(self._generations))

    async def complete(self, tokens: int = 12) -> str:
        """The error of a streamed answer; "" if the answer was complete."""
        self.begun += 1
        self.in_flight += 1
        try:
            wrong = await self._complete(tokens)
        finally:
            self.in_flight -= 1
        self.outcomes.append(wrong)
        return wrong

    async def _complete(self, tokens: int) -> str:
        body = {"model": "tiny", "prompt": prompt(60), "max_tokens": tokens, "ignore_eos": True}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        async with self.http.post(self.gateway.url + "/v1/completions", json=body) as answer:
            text = await answer.text()
            if answer.status != 200:
                return f"{answer.status} {text}"
        events = [event.removeprefix("data: ") for event in text.split("\n\n") if event]
        if events[-1] != "[DONE]" or "usage" not in events[-2]:
            return text[-300:]
        counted = json.loads(events[-2])["usage"]["completion_tokens"]
        return "" if counted == tokens else f"{counted} tokens"

    async def ended(self, count: int) -> None:
        """Wait until `count` more requests have ended."""
        upto = len(self.outcomes) + count
        async with asyncio.timeout(HANG_S):
            while len(self.outcomes) < upto:
                await asyncio.sleep(0.02)

    async def load(self, until: asyncio.Event) -> list[str]:
        """Send requests at a steady rate until the event is set. Returns the error of each."""
        jobs, due = [], time.monotonic()
        while not until.is_set():
            jobs.append(asyncio.create_task(self.complete()))
            due += 1.0 / _RATE
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        return list(await asyncio.gather(*jobs))


@pytest.fixture
async def front() -> AsyncIterator[Front]:
    async with AsyncExitStack() as stack:
        made = Front(stack, FakeLink())
        base = TimeBase(1.0 if REAL else 10.0, 1_700_000_000_000, time.monotonic_ns())
        connector = aiohttp.TCPConnector(limit=0)
        made.http = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        gateway = Gateway(
            GatewaySettings("gateway-1", policy=_APART, engine_key=KEY), Clock(base), made.link
        )
        made.gateway = await stack.enter_async_context(gateway)
        yield made


def hand_over(prefill: EngineUnderTest, decode: EngineUnderTest) -> RouteGroup:
    return RouteGroup("g", 1.0, prefill=(at(prefill),), decode=(at(decode),))


def at(engine: EngineUnderTest) -> Endpoint:
    return Endpoint(engine.endpoint, engine.endpoint)


async def test_decode_reuses_the_kv_of_prefill(front: Front, engines) -> None:
    """The prefill instance computes the prompt once, for streams, whole answers and chats."""
    prefill, decode = await engines("peer"), await engines("main")
    front.serve(hand_over(prefill, decode))
    hits, computed = "vllm:external_prefix_cache_hits_total", "vllm:prompt_tokens_total"
    before, at_prefill = await decode.gauge(hits), await prefill.gauge(computed)
    assert [await front.complete(), await front.complete()] == ["", ""]
    body = {"model": "tiny", "max_tokens": 5, "ignore_eos": True}
    for path, asked in (
        ("/v1/completions", {"prompt": prompt(60)}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": prompt(60)}]}),
    ):
        async with front.http.post(front.gateway.url + path, json={**body, **asked}) as answer:
            whole = await answer.json()
            assert (answer.status, whole["usage"]["completion_tokens"]) == (200, 5)
    grown = await decode.gauge(hits) - before
    assert grown >= 4 * 60
    assert grown == await prefill.gauge(computed) - at_prefill
    await prefill.until("vllm:kv_cache_usage_perc", 0, 0)


async def test_six_role_flips_under_load_fail_no_request(front: Front, engines) -> None:
    """Under a steady load, prefill instances become decode instances and back."""
    one, other = await engines("peer"), await engines("main")
    front.serve(hand_over(one, other))
    over = asyncio.Event()
    asking = asyncio.create_task(front.load(over))
    for turn in range(6):
        await front.ended(_BETWEEN)
        front.serve(hand_over(other, one) if turn % 2 == 0 else hand_over(one, other))
    await front.ended(_BETWEEN)
    over.set()
    assert [wrong for wrong in await asking if wrong] == []
    for engine in (one, other):
        assert await engine.gauge("vllm:external_prefix_cache_hits_total") > 0
        await engine.until("vllm:kv_cache_usage_perc", 0, 0)


@pytest.mark.skipif(not REAL, reason="a simulated engine compiles no grammar")
async def test_a_grammar_that_fails_in_vllm_is_the_clients_fault(front: Front, engines) -> None:
    """The request is sent five times whole and five times streamed. Other requests are served, and
    no engine is ejected.
    """
    front.serve(RouteGroup("g", 1.0, (at(await engines("coreless")),)))
    url = front.gateway.url + "/v1/completions"
    bad = {"model": "tiny", "prompt": "a", "max_tokens": 3}
    bad["structured_outputs"] = {"grammar": "root ::= root"}
    for stream in (False, True) * 5:
        async with front.http.post(url, json={**bad, "stream": stream}) as answer:
            assert answer.status == 400, await answer.text()
        assert await front.complete() == ""
    assert await front.metric("ejections_total") == 0
    schema = {"properties": {f"p{n}": {"pattern": "(a|b)*c{5,90}"} for n in range(3000)}}
    bad["structured_outputs"] = {"json": schema}
    async with front.http.post(url, json=bad) as answer:
        assert answer.status == 400 and "properties" in await answer.text()


async def test_the_official_client_is_served(front: Front, engines) -> None:
    """The `openai` package works for models, completions, chats and streams. For refused requests
    it raises its own exceptions.
    """
    engine = await engines("main")
    front.serve(RouteGroup("g", 1.0, (at(engine),)))
    url = front.gateway.url + "/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        assert "tiny" in [card.id async for card in client.models.list()]
        extra = {"ignore_eos": True}
        done = await client.completions.create(
            model="tiny", prompt="a b", max_tokens=6, n=2, extra_body=extra
        )
        assert [choice.index for choice in done.choices] == [0, 1]
        assert done.usage is not None
        assert done.usage.completion_tokens == 12
        messages = [{"role": "user", "content": "hello"}]
        chat = await client.chat.completions.create(
            model="tiny", messages=messages, max_tokens=5, extra_body=extra
        )
        assert (chat.choices[0].message.role, chat.choices[0].finish_reason) == (
            "assistant",
            "length",
        )
        stream = await client.chat.completions.create(
            model="tiny", messages=messages, max_tokens=5, stream=True, extra_body=extra,
            stream_options={"include_usage": True},
        )  # fmt: skip
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 5
        assert chunks[-2].choices[0].finish_reason == "length"
        tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
        with pytest.raises(openai.BadRequestError):  # no tool parser is configured
            await client.chat.completions.create(model="tiny", messages=messages, tools=tools)
        with pytest.raises(openai.BadRequestError):
            await client.completions.create(model="tiny", prompt="a", temperature=-1)
        with pytest.raises(openai.NotFoundError):
            await client.completions.create(model="nobody", prompt="a")
        with pytest.raises(
            (openai.NotFoundError, openai.BadRequestError)
        ):  # the model generates text only
            await client.embeddings.create(model="tiny", input="a")


async def test_an_engine_with_a_key_serves_only_the_gateway(front: Front, engines) -> None:
    """Other clients get only health answers."""
    engine = await engines("drained")
    front.serve(RouteGroup("g", 1.0, (at(engine),)))
    assert (await engine.post(prompt="a"))[0] == 401
    assert await front.complete() == ""
    assert await engine.health() == 200
    assert "vllm:num_requests_running" in await engine.metrics()


async def test_a_drain_under_load_loses_no_request(front: Front, engines) -> None:
    """The engine leaves the routes, becomes idle and gets SIGTERM. Every request is answered in
    full.
    """
    going, staying = await engines("drained", last=True), await engines("main")
    front.serve(RouteGroup("g", 1.0, (at(going), at(staying))))
    over = asyncio.Event()
    asking = asyncio.create_task(front.load(over))
    await going.until("vllm:generation_tokens_total", 24)
    front.serve(RouteGroup("g", 1.0, (at(staying),)))
    while parse_load(await going.metrics()).in_flight:
        await asyncio.sleep(0.02)
    going.process.send_signal(signal.SIGTERM)
    assert await going.exit_code() == 0
    await front.ended(_BETWEEN)
    over.set()
    assert [wrong for wrong in await asking if wrong] == []


async def test_a_killed_prefill_instance_loses_only_its_current_requests(
    front: Front, engines
) -> None:
    """Its API server dies under load. Later requests succeed, because the decode instance serves
    whole requests too.
    """
    prefill, decode = await engines("headless"), await engines("main")
    front.serve(hand_over(prefill, decode), RouteGroup("h", 0.2, (at(decode),)))
    over = asyncio.Event()
    asking = asyncio.create_task(front.load(over))
    await prefill.until("vllm:prompt_tokens_total", 120)
    held, begun = front.in_flight, front.begun
    os.kill(prefill.process.pid, signal.SIGKILL)
    await prefill.exit_code()  # Until then it may accept connections and requests.
    held += front.begun - begun
    await front.ended(held + _BETWEEN)
    over.set()
    await asking
    assert len([wrong for wrong in front.outcomes if wrong]) <= held
    assert [await front.complete() for _ in range(4)] == [""] * 4
