"""Hostile or faulty clients get a clear error and do not disturb others."""

from __future__ import annotations

import asyncio
import gzip
import json

import orjson
import pytest

from tests.hang_limit import HANG_S
from tests.integration.gateway.gateway_bench import Bench, MakeBench, total, until
from topics.records import RouteGroup

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


async def ready(bench: MakeBench, **options: object) -> Bench:
    b = await bench(speed=1.0, **options)
    engine = await b.engine("e")
    b.route(RouteGroup("g", 1.0, (engine.endpoint,)))
    return b


async def raw(b: Bench, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    port = int(b.gateway.url.rsplit(":", 1)[1])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    return reader, writer


async def answered(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The status, and the bytes until the connection ends."""
    text = await asyncio.wait_for(reader.read(), HANG_S)
    return int(text.split(b" ", 2)[1]), text


async def test_an_incomplete_head_times_out(bench: MakeBench) -> None:
    b = await ready(bench, head_real_s=0.3)
    reader, writer = await raw(b, HEAD)
    assert (await answered(reader))[0] == 408
    writer.close()
    silent, writer = await raw(b, b"")
    assert await asyncio.wait_for(silent.read(), HANG_S) == b""
    writer.close()


async def test_an_endless_head_is_431(bench: MakeBench) -> None:
    b = await ready(bench)
    reader, writer = await raw(b, HEAD + b"X: " + b"a" * 100_000)
    assert (await answered(reader))[0] == 431
    writer.close()
    reader, writer = await raw(b, HEAD + b"X: a\r\n" * 20_000)
    assert (await answered(reader))[0] == 431
    writer.close()


async def test_an_incomplete_body_times_out_and_frees_its_memory(bench: MakeBench) -> None:
    b = await ready(bench, body_real_s=0.4)
    lines = [await raw(b, HEAD + b"Content-Length: 900000\r\n\r\n" + b"a" * 500_000) for _ in "abc"]
    budget = b.gateway._server.body_memory
    await until(lambda: budget.used_bytes == 1_500_000)
    for reader, writer in lines:
        assert (await answered(reader))[0] == 408
        writer.close()
    assert budget.used_bytes == 0
    assert b.gateway._server.requests_timed_out == 3


async def test_incomplete_bodies_share_one_limit_and_small_requests_pass(
    bench: MakeBench,
) -> None:
    """At the limit the largest body is refused, not the newest."""
    b = await ready(bench, body_budget_bytes=3_000_000)
    size = b"Content-Length: 1500000\r\n\r\n"
    lines = [await raw(b, HEAD + size + b"a" * 1_000_000) for _ in range(8)]
    await until(lambda: b.gateway._server.requests_over_limit >= 5)
    assert b.gateway._server.body_memory.used_bytes <= 3_000_000
    assert (await b.post())[0] == 200
    statuses = []
    for reader, writer in lines:
        try:
            async with asyncio.timeout(0.5):
                statuses.append((await answered(reader))[0])
        except TimeoutError:
            statuses.append(0)
        writer.close()
    assert statuses.count(429) >= 5


async def test_a_body_in_tiny_chunks_costs_no_more_than_its_size(bench: MakeBench) -> None:
    b = await ready(bench, max_body_bytes=1_000_000)
    body = orjson.dumps(b.body(prompt="a " * 2000))
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    reader, writer = await raw(b, HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
    text = await asyncio.wait_for(reader.readuntil(b"[DONE]"), HANG_S)
    assert text.startswith(b"HTTP/1.1 200")
    writer.close()
    wasteful = b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 500_000
    reader, writer = await raw(b, HEAD + wasteful)
    assert (await answered(reader))[0] == 413
    writer.close()


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br"])
async def test_compressed_bodies_are_refused_unread(bench: MakeBench, coding: str) -> None:
    b = await ready(bench)
    bomb = gzip.compress(b"a" * 50_000_000)
    headers = {"Content-Encoding": coding, "Content-Type": "application/json"}
    url = b.gateway.url + "/v1/completions"
    async with b.http.post(url, data=bomb, headers=headers) as answer:
        assert answer.status == 415
        assert "compressed" in (await answer.json())["error"]["message"]


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: x\r\n\r\n",
    ],
)
async def test_invalid_http_is_400(bench: MakeBench, data: bytes) -> None:
    b = await ready(bench)
    reader, writer = await raw(b, data)
    assert (await answered(reader))[0] == 400
    writer.close()


async def test_client_errors_do_not_count_against_the_slo(bench: MakeBench) -> None:
    """An SLO miss could lead to a scale-out."""
    b = await ready(bench)
    url = b.gateway.url + "/v1/completions"
    for body in (
        b'{"model":"chat","response_format":{"format":' + b"[" * 500 + b"]" * 500 + b"}}",
        b"[" * 5000,
        b'{"model":"chat","vllm_xargs":{"kv_transfer_params":[]}}',
        b'{"model":"chat","n":1000000}',
    ):  # fmt: skip
        async with b.http.post(url, data=body) as answer:
            assert answer.status == 400
    assert (await b.post())[0] == 200
    await until(lambda: total(b.link.records, "completions") == 1)
    assert total(b.link.records, "arrivals") == 1
    assert total(b.link.records, "failures") + total(b.link.records, "refused") == 0


async def test_heavy_bodies_are_parsed_in_another_process_without_delaying_others(
    bench: MakeBench,
) -> None:
    """A body of 30,000 messages takes many milliseconds to parse."""
    b = await ready(bench)
    messages = b",".join([b'{"role":"user","content":"a"}'] * 30_000)
    heavy = b'{"model":"chat","stream":true,"max_tokens":5,"messages":[' + messages + b"]}"
    url = b.gateway.url + "/v1/chat/completions"

    async def attack() -> int:
        async with b.http.post(url, data=heavy) as answer:
            await answer.read()
            return answer.status

    assert await attack() == 200
    process = b.gateway._app.parser.process
    assert process is not None  # This process parsed the heavy bodies.
    assert (await b.post(prompt=["a"] * 30_000, n=1000))[0] == 400  # A clear error is returned.
    process.kill()
    await process.wait()
    assert await attack() == 200  # in a new process


async def test_few_requests_may_wait_before_any_routes_arrive(
    bench: MakeBench,
) -> None:
    b = await bench(speed=1.0, max_unknown=3, hold_s=30.0)
    waiting = [asyncio.create_task(b.post(model=f"m{n}")) for n in range(3)]
    await until(lambda: b.gateway._app._waiting_for_routes == 3)
    url = b.gateway.url + "/v1/completions"
    async with b.http.post(url, json=b.body(model="m9")) as answer:
        assert answer.status == 503
        assert answer.headers["Retry-After"]
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await until(lambda: b.gateway._app._waiting_for_routes == 0)


async def test_pipelined_requests_are_answered_in_order(bench: MakeBench) -> None:
    b = await ready(bench)
    one = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    two = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    reader, writer = await raw(b, one + one + two)
    _, text = await answered(reader)
    assert text.count(b"HTTP/1.1 200") == 3
    assert text.rindex(b'"status":"ok"') < text.index(b'"object":"list"')
    writer.close()


async def test_an_old_client_gets_a_stream_that_ends_with_the_connection(bench: MakeBench) -> None:
    b = await ready(bench)
    body = json.dumps(b.body()).encode()
    head = HEAD.replace(b"1.1", b"1.0") + b"Content-Length: %d\r\n\r\n" % len(body)
    reader, writer = await raw(b, head + body)
    status, text = await answered(reader)
    assert status == 200
    assert text.endswith(b"data: [DONE]\n\n")
    assert b"chunked" not in text
    writer.close()


async def test_pipelined_requests_are_limited(bench: MakeBench) -> None:
    b = await ready(bench)
    body = orjson.dumps(b.body())
    first = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    reader, writer = await raw(b, first + b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 5000)
    await until(lambda: b.gateway._server.requests_over_limit == 1)
    text = await asyncio.wait_for(reader.read(), HANG_S)
    assert text.startswith(b"HTTP/1.1 200")
    assert text.count(b"HTTP/1.1 ") <= 34
    writer.close()
    assert (await b.post())[0] == 200
