"""The contract of an engine, held by a real simulated engine process at 50 times real time.

What stands here is what vLLM does (measured with 0.32); the harness differs per engine.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator

import aiohttp
import pytest

from executors.engines.exposition import load, values
from executors.node.processes import Ports
from topics.timebase import TimeBase

SPEED = 50.0
HOST = "127.0.0.1"


class EngineUnderTest:
    """One engine process and a client for it."""

    def __init__(self, client: aiohttp.ClientSession, port: int, *options: str) -> None:
        self.client = client
        self.url = f"http://{HOST}:{port}"
        base = TimeBase(SPEED, 1_700_000_000_000, time.monotonic_ns())
        argv = [
            sys.executable, "-m", "executors.engines.simulated", "--model=mini",
            "--source=meta-llama/Llama-3.1-8B", "--gpu=H100-SXM", "--gpus=1", f"--port={port}",
            "--max-len=8192", f"--time-base={base.format()}", "--startup-s=20", *options,
        ]  # fmt: skip
        self.process = subprocess.Popen(argv, stderr=subprocess.PIPE)

    async def ready(self) -> bool:
        """Refused, then 200; True if it was refused at least once."""
        refused = False
        for _ in range(400):
            try:
                async with self.client.get(self.url + "/health") as answer:
                    assert answer.status == 200
                    return refused
            except aiohttp.ClientConnectionError:
                refused = True
                await asyncio.sleep(0.02)
        raise AssertionError("never ready")

    async def post(self, path: str = "/v1/completions", **body: object) -> tuple[int, dict]:
        async with self.client.post(self.url + path, json={"model": "mini", **body}) as answer:
            return answer.status, await answer.json()

    async def stream(self, path: str = "/v1/completions", **body: object) -> list[str]:
        """The data of every server-sent event."""
        body = {"model": "mini", "stream": True, **body}
        async with self.client.post(self.url + path, json=body) as answer:
            assert answer.status == 200
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            text = await answer.text()
        return [event.removeprefix("data: ") for event in text.split("\n\n") if event]

    async def metrics(self) -> str:
        async with self.client.get(self.url + "/metrics") as answer:
            assert answer.status == 200
            return await answer.text()

    async def until_running(self, count: int) -> None:
        for _ in range(400):
            if values(await self.metrics(), "vllm:num_requests_running")[0] >= count:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"never {count} running")

    async def exit_code(self) -> int:
        return await asyncio.to_thread(self.process.wait, 5.0)


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def launch(client: aiohttp.ClientSession) -> AsyncIterator[object]:
    ports, used, started = Ports(HOST), set(), []

    async def start(*options: str) -> EngineUnderTest:
        (port,) = ports.take(used)
        used.add(port)
        engine = EngineUnderTest(client, port, *options)
        started.append(engine)
        assert await engine.ready(), "connections are refused during the start-up time"
        return engine

    yield start
    for engine in started:
        engine.process.kill()
        engine.process.wait()
        engine.process.stderr.close()
    ports.close()


async def test_answers_whole_and_streamed(launch) -> None:
    """One event per token, an optional usage chunk, [DONE]; the same counts without a stream."""
    engine = await launch()
    status, whole = await engine.post(prompt="a b c", max_tokens=5, ignore_eos=True)
    assert status == 200
    assert whole["usage"] == {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
    assert whole["choices"][0]["finish_reason"] == "length"
    events = await engine.stream(
        prompt="a b c", max_tokens=7, stream_options={"include_usage": True}
    )
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert [bool(chunk["choices"]) for chunk in chunks] == [True] * 7 + [False]
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]] == [None] * 6 + ["length"]
    assert chunks[-1]["usage"]["completion_tokens"] == 7
    chat = {"messages": [{"role": "user", "content": "a b"}], "max_tokens": 2}
    chunks = [json.loads(e) for e in (await engine.stream("/v1/chat/completions", **chat))[:-1]]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len(chunks) == 3
    status, whole = await engine.post("/v1/chat/completions", **chat)
    assert whole["choices"][0]["message"]["content"].split() == ["a", "a"]
    async with engine.client.get(engine.url + "/v1/models") as answer:
        assert [card["id"] for card in (await answer.json())["data"]] == ["mini"]


async def test_refuses_in_openai_form(launch) -> None:
    """Unknown model 404; too long, malformed and nonsense 400; each says which parameter."""
    engine = await launch()
    cases = [
        (404, "model", {"model": "other", "prompt": "a"}),
        (400, "max_tokens", {"prompt": "a", "max_tokens": 9000}),
        (400, "max_tokens", {"prompt": "a", "max_tokens": 0}),
        (400, "max_tokens", {"prompt": "a", "max_tokens": "many"}),
        (400, "prompt", {"prompt": {"a": 1}}),
        (400, "stream", {"prompt": "a", "stream": "yes"}),
    ]
    for wanted, param, body in cases:
        status, answer = await engine.post(**body)
        assert (status, answer["error"]["param"]) == (wanted, param)
        assert answer["error"]["code"] == wanted
    async with engine.client.post(engine.url + "/v1/completions", data=b'{"model":') as answer:
        assert answer.status == 400
    for path, status in (("/pause", 404), ("/v1/completions", 405)):
        async with engine.client.get(engine.url + path) as answer:
            assert answer.status == status
    assert (await engine.post(prompt="a", max_tokens=1))[0] == 200


async def test_metrics_under_vllms_names(launch) -> None:
    """Slots bound what runs, the rest waits; counters and histograms add up afterwards."""
    engine = await launch("--max-num-seqs=2")
    jobs = [asyncio.create_task(engine.post(prompt="a " * 50, max_tokens=2000)) for _ in range(3)]
    await engine.until_running(2)
    text = await engine.metrics()
    assert values(text, "vllm:num_requests_waiting") == [1.0]
    assert 0.0 < values(text, "vllm:kv_cache_usage_perc")[0] < 1.0
    assert load(text).in_flight == 3
    await asyncio.gather(*jobs)
    text = await engine.metrics()
    assert load(text).in_flight == load(text).held_kv == 0
    assert values(text, "vllm:generation_tokens_total") == [6000.0]
    assert values(text, "vllm:prompt_tokens_total") == [153.0]
    assert values(text, "vllm:time_to_first_token_seconds_count") == [3.0]
    assert values(text, "vllm:inter_token_latency_seconds_count") == [5997.0]
    assert sum(values(text, "vllm:request_success_total")) == 3.0
    assert values(text, "shoal:sim_late_ms_count")[0] >= 3.0


async def test_a_client_that_leaves_frees_its_slot(launch) -> None:
    """A broken connection aborts the request."""
    engine = await launch("--max-num-seqs=1")
    job = asyncio.create_task(engine.stream(prompt="a", max_tokens=8000))
    await engine.until_running(1)
    job.cancel()
    status, _ = await asyncio.wait_for(engine.post(prompt="a", max_tokens=2), 2.0)
    assert status == 200
    assert 'finished_reason="abort"} 1' in await engine.metrics()


async def test_sigterm_breaks_off_what_is_in_flight(launch) -> None:
    """Default mode: 500, or an error event and [DONE]; no new connections; exit code 0."""
    engine = await launch()
    whole = asyncio.create_task(engine.post(prompt="a", max_tokens=8000))
    stream = asyncio.create_task(engine.stream(prompt="a", max_tokens=8000))
    await engine.until_running(2)
    engine.process.send_signal(signal.SIGTERM)
    status, body = await whole
    assert (status, body["error"]["code"]) == (500, 500)
    events = await stream
    assert json.loads(events[-2])["error"]["code"] == 500
    assert events[-1] == "[DONE]"
    assert await engine.exit_code() == 0
    with pytest.raises(aiohttp.ClientConnectionError):
        await engine.post(prompt="a")


async def test_shutdown_timeout_lets_it_finish(launch) -> None:
    """In flight finishes, new ones get 500, /health stays 200; then exit code 0."""
    engine = await launch("--shutdown-timeout=600")
    job = asyncio.create_task(engine.post(prompt="a", max_tokens=2500))
    await engine.until_running(1)
    engine.process.send_signal(signal.SIGTERM)
    for _ in range(200):
        status, _ = await engine.post(prompt="a", max_tokens=1)
        if status != 200:
            break
    assert status == 500
    assert not await engine.ready()
    status, body = await job
    assert (status, body["usage"]["completion_tokens"]) == (200, 2500)
    assert await engine.exit_code() == 0


async def test_past_the_shutdown_timeout_it_is_broken_off(launch) -> None:
    """Past N what is left gets 500; the exit code is 0 all the same."""
    engine = await launch("--shutdown-timeout=5")
    job = asyncio.create_task(engine.post(prompt="a", max_tokens=8000))
    await engine.until_running(1)
    engine.process.send_signal(signal.SIGTERM)
    assert (await job)[0] == 500
    assert await engine.exit_code() == 0


async def test_prefill_hands_its_kv_to_decode(launch) -> None:
    """The params go unchanged from one to the other; the KV is held until fetched, then freed."""
    prefill, decode = await launch("--phase=prefill"), await launch("--phase=decode")
    asked = {"do_remote_decode": True, "do_remote_prefill": False, "remote_host": None}
    prompt = "a " * 999 + "a"
    status, first = await prefill.post(prompt=prompt, max_tokens=1, kv_transfer_params=asked)
    params = first["kv_transfer_params"]
    assert (status, params["remote_num_tokens"]) == (200, 1000)
    assert load(await prefill.metrics()).held_kv == 1
    status, body = await decode.post(prompt=prompt, max_tokens=20, kv_transfer_params=params)
    assert (status, body["usage"]["completion_tokens"]) == (200, 20)
    assert load(await prefill.metrics()).held_kv == 0
    text = await decode.metrics()
    assert 'source="external_kv_transfer"} 1000' in text
    assert 'source="local_compute"} 0' in text
    status, body = await decode.post(prompt=prompt, max_tokens=20, kv_transfer_params=params)
    assert status == 500, "a lease is fetched once"


async def test_decode_fails_when_the_prefill_instance_is_gone(launch) -> None:
    """Held KV is invisible to the shutdown; decode answers 500 afterwards."""
    prefill, decode = await launch("--phase=prefill"), await launch("--phase=decode")
    asked = {"do_remote_decode": True}
    _, first = await prefill.post(prompt="a b", max_tokens=1, kv_transfer_params=asked)
    prefill.process.send_signal(signal.SIGTERM)
    assert await prefill.exit_code() == 0
    params = first["kv_transfer_params"]
    status, _ = await decode.post(prompt="a b", max_tokens=9, kv_transfer_params=params)
    assert status == 500
    assert values(await decode.metrics(), "vllm:nixl_num_failed_transfers_total") == [1.0]


def test_what_cannot_be_served_is_said_in_one_line() -> None:
    """Weights that do not fit, an unknown GPU: exit code 2 and the reason."""
    for option, said in (("--gpu=H1OO", "H100"), ("--source=meta-llama/Llama-3.1-70B", "weights")):
        argv = [
            sys.executable, "-m", "executors.engines.simulated", "--model=m",
            "--source=meta-llama/Llama-3.1-8B", "--gpu=L4", "--gpus=1", "--port=1",
            "--max-len=100", option,
        ]  # fmt: skip
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20)
        assert done.returncode == 2
        assert said in done.stderr
        assert done.stderr.count("\n") == 1
