"""The gateway in front of simulated engine processes: hand-over, kills and SIGTERM."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import aiohttp
import pytest

from streams.tools.up.host_resources import free_port
from tests.hang_limit import HANG_S
from tests.integration.gateway.gateway_bench import Bench, MakeBench, until
from topics.records import Endpoint, RouteGroup

SPEED = 20.0
StartEngine = Callable[[Bench, str, str], Awaitable[tuple[Endpoint, Process]]]


@pytest.fixture
async def start() -> AsyncIterator[StartEngine]:
    """A function that starts an engine of `phase` and returns when it answers."""
    async with AsyncExitStack() as stack:

        async def begin(bench: Bench, name: str, phase: str) -> tuple[Endpoint, Process]:
            port = free_port()
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "executors.engines.simulated", "--model", "chat",
                "--source", "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "L40S", "--gpus", "1",
                "--phase", phase, "--port", str(port), "--max-len", "8192", "--startup-s", "0",
                "--time-base", f"{SPEED},0,0", stdout=DEVNULL,
            )  # fmt: skip

            async def end() -> None:
                if process.returncode is None:
                    process.kill()
                await process.wait()

            stack.push_async_callback(end)
            async with asyncio.timeout(HANG_S):
                while True:
                    try:
                        async with bench.http.get(f"http://127.0.0.1:{port}/health") as answer:
                            if answer.status == 200:
                                return Endpoint(name, f"127.0.0.1:{port}"), process
                    except aiohttp.ClientError:
                        await asyncio.sleep(0.02)

        yield begin


async def engine_metric(bench: Bench, endpoint: Endpoint, name: str) -> float:
    async with bench.http.get(f"http://{endpoint.address}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


async def test_prefill_on_one_engine_decode_on_another(
    bench: MakeBench, start: StartEngine
) -> None:
    """The decode engine gets the KV over the network and does not compute the prompt itself."""
    b = await bench(speed=SPEED)
    (prefill, _), (decode, _) = await asyncio.gather(
        start(b, "p", "prefill"), start(b, "d", "decode")
    )
    b.route(RouteGroup("g", 1.0, prefill=(prefill,), decode=(decode,)))
    prompt = " ".join("a" * 300)
    status, text = await b.post(prompt=prompt, max_tokens=20, ignore_eos=True)
    assert status == 200
    assert text.count(" a") == 20
    chat = b.gateway.meters["chat"]
    await until(lambda: sum(r.completions for r in b.link.records) + chat.completions == 1)
    external = 'vllm:prompt_tokens_by_source_total{engine="0",model_name="chat",source="external'
    assert await engine_metric(b, decode, external) == 300
    status, text = await b.post(prompt=prompt, max_tokens=20, stream=False)
    assert json.loads(text)["usage"]["completion_tokens"] == 20


async def test_an_engine_killed_under_load_loses_only_started_requests(
    bench: MakeBench, start: StartEngine
) -> None:
    """Streams that had tokens end with an error. Later requests go to the other engine."""
    b = await bench(speed=SPEED)
    (one, victim), (two, _) = await asyncio.gather(
        start(b, "one", "aggregated"), start(b, "two", "aggregated")
    )
    b.route(RouteGroup("g", 1.0, (one, two)))
    asked = [
        asyncio.create_task(b.post(prompt="a a", max_tokens=600, ignore_eos=True))
        for _ in range(20)
    ]
    await until(lambda: sum(m.in_flight for m in b.gateway.meters.values()) == 20)
    async with asyncio.timeout(HANG_S):
        while await engine_metric(b, one, "vllm:time_to_first_token_seconds_count") < 10:
            await asyncio.sleep(0.01)
    victim.send_signal(signal.SIGKILL)
    await victim.wait()
    later = [asyncio.create_task(b.post(prompt="a a", max_tokens=5)) for _ in range(20)]
    answers = await asyncio.gather(*asked)
    broken = [text for _, text in answers if "engine_lost" in text]
    whole = [text for _, text in answers if text.count(" a") == 600]
    assert {status for status, _ in answers} == {200}
    assert 1 <= len(broken) <= 10, "those on the killed engine that had not ended"
    assert len(broken) + len(whole) == 20
    assert all(text.endswith("data: [DONE]\n\n") for _, text in answers)
    assert [status for status, _ in await asyncio.gather(*later)] == [200] * 20
    assert all("engine_lost" not in task.result()[1] for task in later)
    await until(lambda: sum(r.completions for r in b.link.records) == 40 - len(broken))
    assert sum(record.failures for record in b.link.records) == len(broken)
    assert b.gateway.table.routers["chat"].ejected() == {one}


async def test_an_engine_that_gets_sigterm_ends_its_requests_visibly(
    bench: MakeBench, start: StartEngine
) -> None:
    b = await bench(speed=SPEED)
    endpoint, process = await start(b, "one", "aggregated")
    b.route(RouteGroup("g", 1.0, (endpoint,)))
    asked = asyncio.create_task(b.post(prompt="a a", max_tokens=2000, ignore_eos=True))
    async with asyncio.timeout(HANG_S):
        while await engine_metric(b, endpoint, "vllm:generation_tokens_total") < 5:
            await asyncio.sleep(0.01)
    process.terminate()
    status, text = await asked
    assert status == 200
    assert '"finish_reason":"abort"' in text
    assert text.endswith("data: [DONE]\n\n")
    await until(lambda: sum(record.failures for record in b.link.records) == 1)
