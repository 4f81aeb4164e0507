"""Prefill and decode through the gateway: KV hand-over, and prompts that are computed a second
time.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.integration.gateway.gateway_bench import MakeBench, until
from topics.records import RouteGroup


async def test_a_request_is_handed_over_from_prefill_to_decode(bench: MakeBench) -> None:
    """The prefill instance generates one token. Its KV parameters go unchanged to the decode
    instance.
    """
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
async def test_a_request_that_cannot_be_handed_over_is_served_by_one_instance(
    bench: MakeBench, more: dict[str, object]
) -> None:
    """kv_transfer_params describe one prompt, so a second answer would be wrong."""
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
    """This is the opportunistic scheduling of Cauchy sec. 3.4.2."""
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


async def test_a_decode_instance_without_the_kv_restarts_the_prefill(bench: MakeBench) -> None:
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


async def test_a_prompt_is_computed_again_if_its_kv_is_not_available(bench: MakeBench) -> None:
    """The decode instance computes the prompt. Neither instance is at fault."""
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
    """Its role changed from prefill to decode, so its prefix cache already has the KV."""
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
