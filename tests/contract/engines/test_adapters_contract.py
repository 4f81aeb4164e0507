"""LoRA adapters of an engine that was started with them, without and with the gateway."""

from __future__ import annotations

import json

import pytest

from tests.contract.engines.harness import prompt
from tests.contract.engines.test_engine_behind_a_gateway import Front, at, front
from topics.records import RouteGroup

__all__ = ["front"]
NAMES = ("legal", "sql")


async def test_an_engine_lists_adapters_with_their_parent(engines) -> None:
    engine = await engines("adapted")
    async with engine.client.get(engine.url + "/v1/models") as answer:
        listed = {m["id"]: m.get("parent") for m in (await answer.json())["data"]}
    assert listed == {"tiny": None, "legal": "tiny", "sql": "tiny"}


async def test_an_engine_answers_under_the_name_of_an_adapter(engines) -> None:
    engine = await engines("adapted")
    for name in ("tiny", *NAMES):
        status, answer = await engine.generate(4, model=name, prompt=prompt(3))
        assert (status, answer["model"]) == (200, name)
    status, refused = await engine.generate(4, model="other")
    assert (status, refused["error"]["code"]) == (404, 404)


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/completions", {"prompt": "a b", "max_tokens": 4, "ignore_eos": True}),
        ("/v1/responses", {"input": "a b", "max_output_tokens": 4, "ignore_eos": True}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4}),
        ("/tokenize", {"prompt": "a b"}),
    ],
)
async def test_adapters_are_served_on_every_path(engines, path: str, asked: dict) -> None:
    engine = await engines("adapted")
    status, answer = await engine.post(path, model="legal", **asked)
    assert status == 200, answer
    assert answer.get("model", "legal") == "legal"


async def test_the_gateway_finds_the_instance_with_the_adapter(front: Front, engines) -> None:
    """An instance that was started without adapters continues to serve the base model."""
    plain, adapted = await engines("main"), await engines("adapted")
    groups = [RouteGroup(f"g{n}", 1.0, (at(engine),)) for n, engine in enumerate((plain, adapted))]
    front.route(*groups, model="tiny", generation=next(front._generations), adapters=NAMES)
    body = {"model": "legal", "prompt": "a b", "max_tokens": 4, "ignore_eos": True}
    for _ in range(4):
        async with front.http.post(front.gateway.url + "/v1/completions", json=body) as answer:
            assert answer.status == 200, await answer.text()
            assert answer.headers["X-Shoal-Instance"] == adapted.endpoint
            assert json.loads(await answer.text())["model"] == "legal"
    assert await front.metric("ejections_total") == 0
    assert await front.metric("adapters_not_loaded_total") <= 1
