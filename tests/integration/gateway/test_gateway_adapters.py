"""Requests for LoRA adapters: names, keys, instances without the adapter, and counts."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from pathlib import Path

from executors.gateway.pending_routes import declared_names
from tests.integration.gateway.gateway_bench import Bench, FakeEngine, MakeBench, total, until
from topics.lora_adapters import requests_by_adapter
from topics.records import RouteGroup
from topics.telemetry_columns import requests_by_kind

NAMES = ("legal", "sql")


async def engines(b: Bench, *adapters: tuple[str, ...]) -> list[FakeEngine]:
    """One engine per entry, each with these adapters, and routes to all of them."""
    made = []
    for number, names in enumerate(adapters):
        engine = await b.engine(f"e{number}")
        engine.adapters = names
        made.append(engine)
    groups = [RouteGroup(f"g{n}", 1.0, (engine.endpoint,)) for n, engine in enumerate(made)]
    b.route(*groups, adapters=NAMES)
    return made


def counted(b: Bench) -> dict[str, int]:
    """Requests by adapter in all telemetry records."""
    total: Counter[str] = Counter()
    for record in b.link.records:
        total.update(requests_by_adapter(dict(requests_by_kind(record.sent))))
    return dict(total)


async def test_the_engine_gets_the_name_of_the_adapter(bench: MakeBench) -> None:
    """Demand counts once, for the base model. Telemetry also counts requests by adapter."""
    b = await bench()
    (engine,) = await engines(b, NAMES)
    for name in ("legal", "legal", "sql", "chat"):
        assert (await b.post(model=name, stream=False))[0] == 200
    assert [body["model"] for body in engine.seen] == ["legal", "legal", "sql", "chat"]
    await until(lambda: total(b.link.records, "completions") == 4)
    assert {record.model for record in b.link.records} == {"chat"}
    assert total(b.link.records, "arrivals") == 4
    assert counted(b) == {"legal": 2, "sql": 1}
    assert await b.metric("adapter_requests_total") == 3


async def test_adapters_are_listed_with_their_parent(bench: MakeBench) -> None:
    b = await bench()
    await engines(b, NAMES)
    async with b.http.get(b.gateway.url + "/v1/models") as answer:
        listed = [(m["id"], m["parent"]) for m in (await answer.json())["data"]]
    assert listed == [("chat", None), ("legal", "chat"), ("sql", "chat")]
    async with b.http.get(b.gateway.url + "/v1/models/sql") as answer:
        assert (await answer.json())["parent"] == "chat"


async def test_an_instance_without_the_adapter_is_tried_once(bench: MakeBench) -> None:
    """Another instance answers. The first one continues to serve the base model."""
    b = await bench(attempts=1)
    old, new = await engines(b, (), NAMES)
    for _ in range(6):
        assert (await b.post(model="legal", stream=False))[0] == 200
    assert [body["model"] for body in old.seen].count("legal") <= 1
    assert len(new.seen) == 6
    for _ in range(6):
        assert (await b.post(stream=False))[0] == 200
    assert len(old.seen) >= 3
    assert await b.metric("ejections_total") == 0
    assert await b.metric("adapters_not_loaded_total") <= 1


async def test_instances_without_the_adapter_do_not_use_up_attempts(bench: MakeBench) -> None:
    b = await bench(attempts=2)
    made = await engines(b, (), (), (), (), (), ("legal",))
    assert (await b.post(model="legal", stream=False))[0] == 200
    assert [body["model"] for body in made[-1].seen] == ["legal"]


async def test_an_adapter_that_no_instance_has_is_503_at_once(bench: MakeBench) -> None:
    b = await bench()
    await engines(b, (), ())
    for _ in range(2):
        status, text = await b.post(model="legal", stream=False)
        assert status == 503
        assert (
            "no instance of chat has loaded the adapter legal"
            in json.loads(text)["error"]["message"]
        )
    assert (await b.post(stream=False))[0] == 200


async def test_an_unknown_adapter_is_404(bench: MakeBench) -> None:
    """Only declared names are served, even if an engine has more."""
    b = await bench(speed=1000.0)
    await engines(b, (*NAMES, "private"))
    status, text = await b.post(model="private", stream=False)
    assert (status, json.loads(text)["error"]["param"]) == (404, "model")


async def test_a_missing_path_is_not_a_missing_adapter(bench: MakeBench) -> None:
    b = await bench()
    await engines(b, NAMES)
    body = {"model": "legal", "queries": "a", "documents": ["b"]}
    async with b.http.post(b.gateway.url + "/v1/score", json=body) as answer:
        refused = (await answer.json())["error"]
    assert (answer.status, refused["message"]) == (
        404,
        "the engine of chat does not serve /v1/score",
    )
    assert await b.metric("adapters_not_loaded_total") == 0


async def test_a_key_for_a_model_or_for_an_adapter(bench: MakeBench, tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    lines = ["keys:"]
    for name, models in (("base", "[chat]"), ("lawyer", "[legal]")):
        digest = hashlib.sha256(name.encode()).hexdigest()
        lines.append(f"- {{name: {name}, sha256: {digest}, models: {models}}}")
    path.write_text("\n".join(lines))
    path.chmod(0o600)
    b = await bench(keys_file=path)
    await engines(b, NAMES)
    statuses = {}
    for key in ("base", "lawyer"):
        headers = {"Authorization": f"Bearer {key}"}
        for model in ("chat", *NAMES):
            body = b.body(model=model, stream=False)
            url = b.gateway.url + "/v1/completions"
            async with b.http.post(url, json=body, headers=headers) as answer:
                statuses[key, model] = answer.status
        async with b.http.get(b.gateway.url + "/v1/models", headers=headers) as answer:
            statuses[key, "listed"] = [m["id"] for m in (await answer.json())["data"]]
    assert statuses == {
        ("base", "chat"): 200, ("base", "legal"): 200, ("base", "sql"): 200,
        ("base", "listed"): ["chat", "legal", "sql"],
        ("lawyer", "chat"): 403, ("lawyer", "legal"): 200, ("lawyer", "sql"): 403,
        ("lawyer", "listed"): ["legal"],
    }  # fmt: skip


async def test_a_request_that_waits_for_routes_finds_its_adapter(bench: MakeBench) -> None:
    """A request for an adapter is demand for its base model, even before it has routes."""
    declared = declared_names(["chat=legal", "chat=sql", "chat"])
    b = await bench(declared_models=declared)
    engine = await b.engine("e")
    engine.adapters = NAMES
    waiting = asyncio.create_task(b.post(model="legal", stream=False))
    await until(lambda: total(b.link.records, "arrivals") == 1)
    b.route(RouteGroup("g", 1.0, (engine.endpoint,)), adapters=NAMES)
    assert (await waiting)[0] == 200
    assert [body["model"] for body in engine.seen] == ["legal"]
    await until(lambda: total(b.link.records, "completions") == 1)
    assert total(b.link.records, "arrivals") == 1
    assert counted(b) == {"legal": 1}


async def test_tokens_of_an_adapter_are_no_demand(bench: MakeBench) -> None:
    b = await bench()
    await engines(b, NAMES)
    body = {"model": "legal", "prompt": "a"}
    async with b.http.post(b.gateway.url + "/tokenize", json=body) as answer:
        assert answer.status == 200
    assert (await b.post(stream=False))[0] == 200
    await until(lambda: total(b.link.records, "completions") == 1)
    assert total(b.link.records, "arrivals") == 1
    assert counted(b) == {}


async def test_an_adapter_of_a_recommend_only_model_does_not_wait(bench: MakeBench) -> None:
    """No instance will start, so the request is refused at once, as for the model itself."""
    declared = declared_names(["chat", "chat=legal"])
    only = frozenset({"chat"})
    b = await bench(speed=1.0, hold_s=60.0, recommend_only=only, declared_models=declared)
    status, text = await b.post(model="legal", stream=False)
    assert (status, "its mode is not act" in text) == (503, True)
