"""Sessions of Locust as a process: growing prefixes, failures that are read back, and totals."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import orjson
import pytest
from aiohttp import web

from loadtests.session_load import SessionLoad
from tests.hang_limit import HANG_S

GOT = web.AppKey("got", list)
SAYS = web.AppKey("says", Callable[[str], str])  # type: ignore[type-abstract]


async def complete(request: web.Request) -> web.StreamResponse:
    """Answer with eight tokens, with an error, or with a stream that ends too early."""
    body = orjson.loads(await request.read())
    request.app[GOT].append(body)
    says = request.app[SAYS](body["model"])
    if says == "busy":
        return web.Response(status=503)
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await answer.prepare(request)
    count = 7 if says == "short" else body["max_tokens"]
    for _ in range(count):
        await answer.write(b'data: {"choices":[{"text":"a"}]}\n\n')
    if says == "cut":
        assert request.transport is not None
        request.transport.close()
        return answer
    usage = b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":%d}}' % count
    await answer.write(b"data: " + usage + b"\n\ndata: [DONE]\n\n")
    return answer


async def served(says: Callable[[str], str], load: SessionLoad, requests: int) -> list[dict]:
    """The prompts that two servers got while `load` made at least `requests` requests."""
    app = web.Application()
    app[GOT], app[SAYS] = [], says
    app.router.add_post("/v1/completions", complete)
    runner = web.AppRunner(app)
    await runner.setup()
    for name in load.gateways:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        load.gateways[name] = f"http://127.0.0.1:{port}"
    enough = asyncio.Event()
    load.on_request = lambda _: enough.set() if len(load.requests) >= requests else None
    running = asyncio.create_task(load.run())
    try:
        await asyncio.wait_for(enough.wait(), HANG_S)
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait_for(running, HANG_S)
        await runner.cleanup()
    return app[GOT]


def sessions(tmp_path: Path, **more: object) -> SessionLoad:
    gateways = {"gateway-a": "", "gateway-b": ""}
    return SessionLoad(
        gateways, ("chat", "code"), 8, tmp_path / "locust.log", think_s=0.2, **more,  # type: ignore[arg-type]
    )  # fmt: skip


async def test_each_session_asks_with_a_growing_prefix_of_its_own(tmp_path: Path) -> None:
    load = sessions(tmp_path)
    got = await served(lambda _: "", load, 120)
    assert load.unread() == ""
    assert not [one for one in load.requests if one.why]
    pairs = {(one.model, one.gateway) for one in load.requests}
    assert len(pairs) == 4
    turns = defaultdict(list)
    for body in got:
        turns[body["prompt"].split(" word")[0]].append(body["prompt"])
    assert len(turns) > 8
    assert max(map(len, turns.values())) > 2
    for prompts in turns.values():
        for earlier, later in pairwise(prompts):
            assert later.startswith(earlier) and len(later) > len(earlier)
    assert all(0.0 < one.first_ms <= one.last_ms and one.tokens == 8 for one in load.requests)


@pytest.mark.parametrize(
    ("says", "status", "why"),
    [("busy", 503, "status 503"), ("short", 200, "7 of 8 tokens"), ("cut", None, None)],
)
async def test_each_failed_request_is_read_back_with_its_reason(
    tmp_path: Path, says: str, status: int | None, why: str | None
) -> None:
    """A refusal, an answer with fewer tokens, and a stream that breaks. Locust counts the same."""
    load = sessions(tmp_path)
    await served(lambda model: says if model == "code" else "", load, 40)
    assert load.unread() == ""
    assert {one.model for one in load.requests if one.why} == {"code"}
    failed = [one for one in load.requests if one.model == "code"]
    assert all(one.why for one in failed)
    if why is not None:
        assert {(one.status, one.why) for one in failed} == {(status, why)}


async def test_a_failed_request_is_repeated_at_the_next_gateway(tmp_path: Path) -> None:
    load = sessions(tmp_path, tries=3)
    await served(lambda _: "busy", load, 30)
    tries = defaultdict(list)
    for one in load.requests:
        tries[one.turn].append((one.tried, one.gateway))
    whole = [one for one in tries.values() if len(one) == 3]
    assert whole
    for one in whole:
        assert [tried for tried, _ in one] == [0, 1, 2]
        assert one[0][1] != one[1][1] != one[2][1]


async def test_a_load_that_ends_by_itself_is_an_error(tmp_path: Path) -> None:
    load = sessions(tmp_path)
    load.gateways = {"gateway-a": "http://127.0.0.1:9"}
    load.users = -1
    with pytest.raises(RuntimeError, match="Locust ended"):
        await asyncio.wait_for(load.run(), HANG_S)
    assert load.ended
    assert load.unread()
