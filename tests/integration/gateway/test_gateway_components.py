"""The gateway sends requests through the real stages of a component model."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from executors.engines.simulated.small_http import Connection
from executors.engines.simulated.stage import Stage
from tests.integration.gateway.gateway_bench import Bench, MakeBench, until
from topics.records import Endpoint, RequestKind, RouteGroup, Routes
from topics.routing import Hop, RoutePath
from topics.routing import Stage as RouteStage
from topics.time_base import TimeBase

SPEED = 20.0
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
KINDS = (
    RequestKind("text"),
    RequestKind("photo", ("image",)),
    RequestKind("voice", ("audio", "audio-out")),
)


@dataclass
class Here:
    """A stage in this process, and its listener."""

    stage: Stage
    listener: asyncio.Server
    endpoint: Endpoint

    async def metric(self, bench: Bench, name: str) -> float:
        async with bench.http.get(f"http://{self.endpoint.address}/metrics") as answer:
            text = await answer.text()
        return sum(float(v.rsplit(" ", 1)[1]) for v in text.splitlines() if name in v)

    def die(self) -> None:
        self.listener.close()
        for connection in list(self.stage.connections):
            connection.close()


async def stage(bench: Bench, name: str, seconds: dict[str, float]) -> Here:
    made = Stage("omni", 8192, seconds, TimeBase(SPEED, 0, 0))
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(
        lambda: Connection(made.handle, made.connections), "127.0.0.1", 0
    )
    port = listener.sockets[0].getsockname()[1]
    here = Here(made, listener, Endpoint(name, f"127.0.0.1:{port}"))

    async def end() -> None:
        here.die()

    bench.stack.push_async_callback(end)
    return here


def hops(*steps: tuple[str, str]) -> tuple[Hop, ...]:
    return tuple(Hop(name, tuple(runs.split("+"))) for name, runs in steps)


def route(bench: Bench, generation: int = 1, **stages: tuple[Here, ...]) -> None:
    """Apply routes. Text goes to `llm`. Three of four photos go through `image` and `llm`, the
    fourth to `all`.
    """
    group = RouteGroup(
        "cell",
        1.0,
        stages=tuple(
            RouteStage(name, tuple(one.endpoint for one in here)) for name, here in stages.items()
        ),
        paths=(
            RoutePath("text", 6.0, hops(("llm", "llm"))),
            RoutePath("photo", 3.0, hops(("image", "image"), ("llm", "llm"))),
            RoutePath("photo", 1.0, hops(("all", "image+llm"))),
            RoutePath("voice", 1.0, hops(("all", "audio+llm+talker"))),
        ),
    )
    bench.gateway.table.apply(
        Routes("omni", generation, 1, 0, 60_000.0, 60_000.0, (group,), kinds=KINDS)
    )


async def fleet(bench: Bench) -> dict[str, Here]:
    return {
        "image": await stage(bench, "i-0", {"image": 0.2}),
        "llm": await stage(bench, "l-0", {"llm": 0.2}),
        "all": await stage(bench, "a-0", {"image,llm": 0.3, "audio,llm,talker": 0.4}),
    }


async def ask(
    bench: Bench, *parts: dict[str, Any], stream: bool = False, **changes: Any
) -> tuple[int, str]:
    content = [{"type": "text", "text": "what is this"}, *parts]
    return await bench.post(
        "/v1/chat/completions",
        model="omni",
        messages=[{"role": "user", "content": content}],
        stream=stream,
        **changes,
    )


def in_flight(bench: Bench, here: dict[str, Here]) -> int:
    router = bench.gateway.table.routers["omni"]
    return sum(router.in_flight(one.endpoint) for one in here.values())


async def test_requests_take_the_planned_paths_and_are_counted_by_kind(bench: MakeBench) -> None:
    b = await bench(speed=SPEED)
    here = await fleet(b)
    route(b, **{name: (one,) for name, one in here.items()})
    asked = [ask(b, IMAGE) for _ in range(16)] + [ask(b) for _ in range(4)]
    answers = await asyncio.gather(*asked)
    assert Counter(status for status, _ in answers) == {200: 20}
    assert json.loads(answers[0][1])["choices"][0]["message"]["content"] == " a" * 5
    sent = Counter[str]()
    for record in (*b.link.records, b.gateway.meters["omni"].report("omni", "g", "b", 1, 0, 0, 0)):
        for kind, ways in record.sent.items():
            sent.update({f"{kind} {way}": count for way, count in ways.items()})
    assert sent == {"photo image/llm": 12, "photo all": 4, "text llm": 4}
    assert in_flight(b, here) == 0


async def test_the_last_stage_streams_and_names_itself(bench: MakeBench) -> None:
    b = await bench(speed=SPEED)
    here = await fleet(b)
    route(b, **{name: (one,) for name, one in here.items()})
    status, text = await ask(b, AUDIO, stream=True, modalities=["text", "audio"])
    assert (status, text.count("data: [DONE]")) == (200, 1)
    assert '"content":" a a a a a"' in text


async def test_media_of_no_request_kind_are_refused_in_one_line(bench: MakeBench) -> None:
    b = await bench(speed=SPEED)
    here = await fleet(b)
    route(b, **{name: (one,) for name, one in here.items()})
    status, text = await ask(
        b, {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}
    )
    assert status == 400
    assert json.loads(text)["error"]["message"] == "omni does not accept video"


async def test_a_failed_hop_is_named_and_releases_its_slots(bench: MakeBench) -> None:
    """The second hop has no instance, so the slot of the first hop is released."""
    b = await bench(speed=SPEED, hold_s=0.5, attempts=2)
    here = await fleet(b)
    here.pop("all")
    kinds = (RequestKind("photo", ("image",)),)
    group = RouteGroup(
        "cell", 1.0,
        stages=tuple(RouteStage(n, (one.endpoint,)) for n, one in here.items()),
        paths=(RoutePath("photo", 1.0, hops(("image", "image"), ("llm", "llm"))),),
    )  # fmt: skip
    b.gateway.table.apply(Routes("omni", 1, 1, 0, 6e4, 6e4, (group,), kinds=kinds))
    here["llm"].die()
    status, text = await ask(b, IMAGE)
    assert status in (502, 503)
    assert "llm" in text or "no instance of omni is ready" in text
    assert in_flight(b, here) == 0


async def test_a_second_instance_takes_the_request_of_a_dead_one(bench: MakeBench) -> None:
    b = await bench(speed=SPEED)
    here = await fleet(b)
    spare = await stage(b, "l-1", {"llm": 0.2})
    ends = {name: (one,) for name, one in here.items()}
    route(b, **{**ends, "llm": (here["llm"], spare)})
    here["llm"].die()
    answers = await asyncio.gather(*(ask(b) for _ in range(6)))
    assert [status for status, _ in answers] == [200] * 6
    assert in_flight(b, {**here, "spare": spare}) == 0


async def test_a_client_that_leaves_cancels_the_stage_it_is_in(bench: MakeBench) -> None:
    b = await bench(speed=SPEED)
    slow = await stage(b, "l-0", {"llm": 400.0})
    here = {**await fleet(b), "llm": slow}
    route(b, **{name: (one,) for name, one in here.items()})
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await ask(b)
    await until(lambda: in_flight(b, here) == 0)
    await until(slow.stage.idle.is_set)


async def test_a_stage_without_the_component_refuses_in_one_line(bench: MakeBench) -> None:
    b = await bench(speed=SPEED)
    llm = await stage(b, "l-0", {"llm": 0.2})
    body = b.body(model="omni", stream=False, stage={"runs": ["talker"], "outputs": {}})
    async with b.http.post(f"http://{llm.endpoint.address}/v1/completions", json=body) as answer:
        assert answer.status == 400
        assert "stage.runs: 'talker' is not declared here" in await answer.text()


async def test_clients_cannot_name_a_stage(bench: MakeBench) -> None:
    b = await bench(speed=SPEED)
    here = await fleet(b)
    route(b, **{name: (one,) for name, one in here.items()})
    status, text = await ask(b, stage={"runs": ["llm"]})
    assert (status, "stage: this field is not accepted" in text) == (400, True)
