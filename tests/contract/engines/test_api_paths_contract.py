"""Paths other than completions and chat: the Responses and Messages APIs, tokens, and unknown
paths.

Engines are tested alone and behind the gateway.
"""

from __future__ import annotations

import json

import openai
import pytest

from tests.contract.engines.harness import KEY, REAL, prompt
from tests.contract.engines.test_engine_behind_a_gateway import Front, at, front
from tests.integration.gateway.gateway_bench import total, until
from topics.records import RouteGroup

__all__ = ["front"]
HELLO = [{"role": "user", "content": "a b"}]


def names(text: str) -> list[str]:
    """The names of all events of a stream."""
    return [line[7:] for line in text.splitlines() if line.startswith("event: ")]


async def raw_stream(engine, path: str, **body: object) -> str:
    body = {"model": "tiny", "stream": True, **body}
    async with engine.client.post(engine.url + path, json=body) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.text()


async def test_a_response_is_whole_or_a_stream_of_named_events(engines) -> None:
    """A stream begins with events without output, has deltas, and ends with the whole response."""
    engine = await engines("main")
    asked = {"input": prompt(3), "max_output_tokens": 5, "ignore_eos": True, "store": False}
    status, whole = await engine.post("/v1/responses", **asked)
    assert (status, whole["object"], whole["status"]) == (200, "response", "incomplete")
    assert whole["usage"]["output_tokens"] == 5
    text = await raw_stream(engine, "/v1/responses", **asked)
    found = names(text)
    assert found[:2] == ["response.created", "response.in_progress"]
    if not REAL:  # Random weights may generate only parts of characters, which have no text.
        assert "response.output_text.delta" in found
    assert found[-1] == "response.completed"
    assert "[DONE]" not in text
    last = json.loads(text.strip().split("data: ")[-1])["response"]
    assert last["usage"]["output_tokens"] == 5


async def test_a_message_is_whole_or_a_stream_of_named_events(engines) -> None:
    engine = await engines("main")
    asked = {"messages": HELLO, "max_tokens": 5}
    status, whole = await engine.post("/v1/messages", **asked)
    assert (status, whole["type"], whole["role"]) == (200, "message", "assistant")
    assert whole["stop_reason"] in ("max_tokens", "end_turn")
    assert whole["usage"]["input_tokens"] > 0
    text = await raw_stream(engine, "/v1/messages", **asked)
    found = names(text)
    assert (found[0], found[-2:]) == ("message_start", ["message_delta", "message_stop"])
    assert "[DONE]" not in text
    status, refused = await engine.post("/v1/messages", **{**asked, "model": "other"})
    assert (status, refused["type"], "message" in refused["error"]) == (404, "error", True)


async def test_tokens_are_counted_without_generation(engines) -> None:
    engine = await engines("main")
    status, counted = await engine.post("/tokenize", prompt=prompt(7), add_special_tokens=False)
    assert (status, counted["count"], len(counted["tokens"])) == (200, 7, 7)
    status, back = await engine.post("/detokenize", tokens=counted["tokens"])
    assert (status, list(back)) == (200, ["prompt"])
    status, messages = await engine.post("/v1/messages/count_tokens", messages=HELLO)
    assert (status, messages["input_tokens"] > 0) == (200, True)


@pytest.mark.parametrize("path", ["/v1/score", "/v1/rerank"])
async def test_a_generating_engine_has_no_scores(engines, path: str) -> None:
    engine = await engines("main")
    status, _ = await engine.post(path, query="a", queries="a", documents=["b"])
    assert status in (404, 501)


async def test_the_gateway_passes_responses_through(front: Front, engines) -> None:
    """OpenAI's client reads the answers. The usage in the last event counts as demand."""
    engine = await engines("main")
    front.serve(RouteGroup("g", 1.0, (at(engine),)))
    client = openai.AsyncOpenAI(base_url=front.gateway.url + "/v1", api_key=KEY, max_retries=0)
    extra = {"ignore_eos": True}
    whole = await client.responses.create(
        model="tiny", input=prompt(3), max_output_tokens=5, extra_body=extra
    )
    assert whole.usage is not None
    assert whole.usage.output_tokens == 5
    events = [
        event
        async for event in await client.responses.create(
            model="tiny", input=prompt(3), max_output_tokens=6, stream=True, extra_body=extra
        )
    ]
    assert [events[0].type, events[-1].type] == ["response.created", "response.completed"]
    await client.close()
    await until(lambda: total(front.link.records, "completions") == 2, 15.0)
    assert total(front.link.records, "output_tokens") == 11
    assert total(front.link.records, "failures") == 0


async def test_the_gateway_passes_messages_through(front: Front, engines) -> None:
    engine = await engines("main")
    front.serve(RouteGroup("g", 1.0, (at(engine),)))
    body = {"model": "tiny", "messages": HELLO, "max_tokens": 4, "stream": True}
    async with front.http.post(front.gateway.url + "/v1/messages", json=body) as answer:
        assert answer.status == 200
        found = names(await answer.text())
    assert (found[0], found[-1]) == ("message_start", "message_stop")
    body["messages"] = [{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}]
    async with front.http.post(front.gateway.url + "/v1/messages", json=body) as answer:
        refused = await answer.json()
    assert (answer.status, refused["type"]) == (400, "error")
    assert refused["error"]["param"] == "messages[0].content[0].x"
    await until(lambda: total(front.link.records, "completions") == 1, 15.0)
    assert 1 <= total(front.link.records, "output_tokens") <= 4


async def test_token_counting_through_the_gateway_is_no_demand(front: Front, engines) -> None:
    """It needs no GPU, so it must not add capacity."""
    engine = await engines("main")
    front.serve(RouteGroup("g", 1.0, (at(engine),)))
    for path, body in (
        ("/tokenize", {"prompt": "a b c"}),
        ("/detokenize", {"tokens": [1, 2]}),
        ("/v1/messages/count_tokens", {"messages": HELLO}),
    ):
        url = front.gateway.url + path
        async with front.http.post(url, json={"model": "tiny", **body}) as answer:
            assert answer.status == 200, await answer.text()
    assert await front.complete() == ""
    await until(lambda: total(front.link.records, "completions") == 1, 15.0)
    assert total(front.link.records, "arrivals") == 1


async def test_a_path_that_the_engine_lacks_is_an_openai_error(front: Front, engines) -> None:
    """The client learns that the model is the reason. The engine is not ejected."""
    engine = await engines("main")
    front.serve(RouteGroup("g", 1.0, (at(engine),)))
    body = {"model": "tiny", "query": "a", "documents": ["b"]}
    async with front.http.post(front.gateway.url + "/v1/rerank", json=body) as answer:
        refused = (await answer.json())["error"]
    assert answer.status in (404, 501)
    assert refused["code"] == answer.status
    assert refused["message"]
    assert await front.metric("ejections_total") == 0


async def test_tools_without_a_parser_are_refused_by_the_engine(front: Front, engines) -> None:
    """`tool_choice: auto` needs engine arguments. The engine's refusal reaches the client."""
    engine = await engines("main")
    front.serve(RouteGroup("g", 1.0, (at(engine),)))
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    body = {"model": "tiny", "messages": HELLO, "tools": [tool], "tool_choice": "auto"}
    async with front.http.post(front.gateway.url + "/v1/chat/completions", json=body) as answer:
        refused = (await answer.json())["error"]
    assert answer.status == 400
    assert "--enable-auto-tool-choice" in refused["message"]
