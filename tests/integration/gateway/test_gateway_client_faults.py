"""If engines that answer other requests fail at one request, that request is at fault."""

from __future__ import annotations

import json

import pytest

from tests.integration.gateway.gateway_bench import Bench, FakeEngine, MakeBench, total, until
from topics.records import RouteGroup

BAD = "a bad one"


async def failing(
    bench: MakeBench, count: int, mode: str = "status:500"
) -> tuple[Bench, list[FakeEngine]]:
    """Engines that fail at one prompt and answer all others."""
    made = await bench(verify_real_s=0.02)
    engines = [await made.engine(f"e{n}") for n in range(count)]
    for engine in engines:
        engine.mode, engine.only_for = mode, BAD
    made.route(RouteGroup("g", 1.0, tuple(engine.endpoint for engine in engines)))
    return made, engines


def bad_requests(engines: list[FakeEngine]) -> int:
    return sum(body.get("prompt") == BAD for engine in engines for body in engine.seen)


@pytest.mark.parametrize("mode", ["status:500", "error-after:0"])
@pytest.mark.parametrize("count", [1, 2, 4])
async def test_a_request_that_two_attempts_answer_with_500_is_at_fault(
    bench: MakeBench, count: int, mode: str
) -> None:
    """It gets two attempts each time. It ejects no engine and does not count as an SLO miss."""
    b, engines = await failing(bench, count, mode)
    for _ in range(5):
        status, text = await b.post(prompt=BAD)
        assert (status, json.loads(text)["error"]["type"]) == (400, "invalid_request_error")
        assert "fail at this one" in json.loads(text)["error"]["message"]
        assert (await b.post())[0] == 200
    assert bad_requests(engines) == 10
    assert await b.metric("ejections_total") == 0
    await until(lambda: total(b.link.records, "completions") == 5)
    assert total(b.link.records, "withdrawn") == 5
    assert total(b.link.records, "failures") == total(b.link.records, "refused") == 0


async def test_engines_that_fail_at_every_request_are_at_fault(bench: MakeBench) -> None:
    """Their health checks pass. Only a token probe shows that the request is not at fault."""
    b, engines = await failing(bench, 2)
    for engine in engines:
        engine.only_for = ""
    status, text = await b.post(prompt=BAD)
    assert (status, json.loads(text)["error"]["type"]) == (502, "engine_lost")
    await until(lambda: total(b.link.records, "failures") == 1)


async def test_one_instance_that_fails_where_another_answers_is_at_fault(bench: MakeBench) -> None:
    b, engines = await failing(bench, 2)
    engines[1].mode = "ok"
    assert [(await b.post(prompt=BAD))[0] for _ in range(6)] == [200] * 6
    assert b.gateway.table.routers["chat"].ejected() == {engines[0].endpoint}


async def test_a_4xx_error_in_the_first_event_of_a_stream_rejects_the_request(
    bench: MakeBench,
) -> None:
    """The engine has already sent status 200. The gateway tries no other engine."""
    b, engines = await failing(bench, 2, "refuse-after:0")
    status, text = await b.post(prompt=BAD)
    assert (status, json.loads(text)["error"]["code"]) == (400, 400)
    assert bad_requests(engines) == 1
    await until(lambda: total(b.link.records, "withdrawn") == 1)


async def test_a_schema_beyond_the_bounds_reaches_no_engine(bench: MakeBench) -> None:
    b, engines = await failing(bench, 1)
    schema = {"properties": {f"p{n}": {"pattern": "(a|b)*c{5,90}"} for n in range(3000)}}
    status, text = await b.post(structured_outputs={"json": schema})
    error = json.loads(text)["error"]
    assert (status, error["param"]) == (400, "structured_outputs.json")
    assert "one request may have at most 2000 properties" in error["message"]
    assert not engines[0].seen
    assert b.gateway.meters.get("chat") is None or not b.gateway.meters["chat"].arrivals


def showing(url: str, part: str = "image_url") -> list[dict[str, object]]:
    return [{"role": "user", "content": [{"type": part, part: {"url": url}}]}]


CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("part", ["image_url", "video_url", "audio_url"])
async def test_media_urls_are_refused_unless_their_host_is_declared(
    bench: MakeBench, part: str
) -> None:
    b = await bench()
    engine = await b.engine("e")
    b.route(RouteGroup("g", 1.0, (engine.endpoint,)))
    good = "https://media.example/a.png"
    status, text = await b.post(CHAT, messages=showing(good, part))
    assert (status, json.loads(text)["error"]["param"]) == (400, f"messages[0].content[0].{part}")
    assert "only data: URLs are accepted" in text
    assert (await b.post(CHAT, messages=showing("data:image/png;base64,AAAA", part)))[0] == 200
    assert len(engine.seen) == 1


@pytest.mark.parametrize(
    ("url", "status"),
    [
        ("https://media.example/a.png?x=1#y", 200),
        ("http://MEDIA.example:8080", 200),
        ("http://169.254.169.254/latest/meta-data", 400),
        ("https://media.example.attacker.example/", 400),
        ("https://media.example@attacker.example/", 400),
        ("https://attacker.example\\@media.example/", 400),
        ("https://media.example\\@attacker.example/", 400),
        ("https://attacker.example#@media.example/", 400),
        ("https://media.example\t@attacker.example/", 400),
        ("https://[::1]/", 400),
        ("https:///media.example/", 400),
    ],
)
async def test_engines_fetch_media_only_from_declared_hosts(
    bench: MakeBench, url: str, status: int
) -> None:
    b = await bench(media_domains=frozenset({"media.example"}))
    engine = await b.engine("e")
    b.route(RouteGroup("g", 1.0, (engine.endpoint,)))
    assert (await b.post(CHAT, messages=showing(url)))[0] == status
    heavy = [
        *showing(url),
        {"role": "user", "content": "a" * 600_000},
    ]  # The parser process parses it.
    assert (await b.post(CHAT, messages=heavy))[0] == status
