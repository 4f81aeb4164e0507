"""How engines end: stops, crashes, and remaining processes.

This module runs last, because it ends the engines.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal

import aiohttp
import pytest

from tests.contract.engines.harness import REAL, EngineUnderTest, prompt
from tests.hang_limit import HANG_S

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "a b"}]
ASKED = {"do_remote_decode": True, "do_remote_prefill": False, "remote_host": None}


async def test_a_stop_with_a_time_out_finishes_requests_and_loses_unfetched_kv(engines) -> None:
    """Running requests finish, new ones get 500, /health stays 200, and the exit code is 0. After
    the loss of KV, decode fails or computes the prompt itself, depending on its policy.
    """
    prefill, decode, spare = (
        await engines("peer", last=True),
        await engines("main"),
        await engines("spare"),
    )
    text = prompt(100)
    _, first = await prefill.generate(1, prompt=text, kv_transfer_params=ASKED)
    jobs = [asyncio.create_task(prefill.generate(prefill.long // 4)) for _ in range(4)]
    await prefill.until_running(4)
    if not REAL:
        prefill.wedge()  # so that the jobs still run when the others are refused
    prefill.process.send_signal(signal.SIGTERM)
    assert await _refusal(prefill) == 500
    assert await prefill.health() == 200
    if not REAL:
        prefill.unwedge()
    done = await asyncio.gather(*jobs)
    assert [(s, b["choices"][0]["finish_reason"]) for s, b in done] == [(200, "length")] * 4
    assert await prefill.exit_code() == 0
    params = first["kv_transfer_params"]
    status, body = await decode.generate(9, prompt=text, kv_transfer_params=params)
    assert (status, body["error"]["code"]) == (500, 500)
    assert await decode.gauge("vllm:nixl_num_failed_transfers_total") >= 1
    status, body = await spare.generate(9, prompt=text, kv_transfer_params=params)
    assert (status, body["usage"]["completion_tokens"]) == (200, 9)


async def test_past_the_shutdown_time_out_requests_hang(engines) -> None:
    """The core is killed, the port closes, and remaining requests get no answer. The process stays
    until its clients disconnect or it is killed.
    """
    engine = await engines("spare", last=True)
    jobs = [asyncio.create_task(engine.generate(engine.long)) for _ in range(8)]
    await engine.until_running(8)
    engine.process.send_signal(signal.SIGTERM)
    while await engine.health():
        await asyncio.sleep(0.05)
    await asyncio.sleep(1.0)
    assert [job.result() for job in jobs if job.done()] == []
    assert engine.process.poll() is None
    for job in jobs:
        job.cancel()
    assert await engine.exit_code() == 0


async def test_a_stop_without_a_time_out_ends_answers_at_once(engines) -> None:
    """Running answers end with the finish reason "abort" and status 200. So a client that reads
    only the status takes half an answer for a whole one. On a busy machine they end with 500 or an
    error event.

    New connections are refused, and the exit code is 0. A real engine may also kill its core first,
    then wait for clients that get no answer.
    """
    engine = await engines("cut", last=True)
    whole = asyncio.create_task(engine.generate(engine.long))
    stream = asyncio.create_task(engine.stream(prompt="a", max_tokens=engine.long))
    chat = asyncio.create_task(engine.stream(CHAT, messages=HELLO, max_tokens=engine.long))
    await engine.until_running(3)
    engine.process.send_signal(signal.SIGTERM)
    answered, waiting = await asyncio.wait({whole, stream, chat}, timeout=30.0)
    if REAL and not answered:
        for job in waiting:
            job.cancel()
        return
    assert _outcome(*await whole) in ("abort", "500")
    for events in (await stream, await chat):
        assert events[-1] == "[DONE]"
        last = json.loads(events[-2])
        assert "error" in last or last["choices"][0]["finish_reason"] == "abort"
    assert await engine.exit_code() == 0
    with pytest.raises(aiohttp.ClientConnectionError):
        await engine.generate(1)


async def test_the_api_server_ends_with_its_core(engines) -> None:
    """Running requests get 500 or an error event. Then the port closes, and the exit code is 0."""
    engine = await engines("coreless", last=True)
    whole = asyncio.create_task(engine.generate(engine.long))
    stream = asyncio.create_task(engine.stream(prompt="a", max_tokens=engine.long))
    await engine.until_running(2)
    await engine.kill_core()
    assert (await whole)[0] == 500
    events = await stream
    assert (json.loads(events[-2])["error"]["code"], events[-1]) == (500, "[DONE]")
    assert await engine.exit_code(10.0) == 0
    assert await engine.health() == 0


async def test_a_dead_api_server_leaves_no_process_behind(engines) -> None:
    """If only the leader gets SIGKILL, vLLM's core and workers survive. The executor finds them by
    their tag. It ends them before it reports the end of the engine.
    """
    engine = await engines("headless", last=True)
    if engine.process.poll() is None:
        os.kill(engine.process.pid, signal.SIGKILL)
    assert await engine.exit_code() == -signal.SIGKILL
    assert await engine.health() == 0
    assert bool(engine.launched.tagged()) is bool(REAL), "a simulated engine is one process"
    async with asyncio.timeout(HANG_S):
        while (ended := engine.launched.engine.poll()) is None:
            await asyncio.sleep(0.05)
    assert "SIGKILL" in ended
    assert engine.launched.tagged() == []


async def test_a_broken_hand_over_kills_the_engine(engines) -> None:
    """One request whose transfer parameters lack an address ends the core and
    all other requests.
    """
    engine = await engines("main", last=True)
    other = asyncio.create_task(engine.generate(engine.long))
    await engine.until_running(1)
    status, _ = await engine.generate(1, kv_transfer_params={"do_remote_prefill": True})
    assert (status, (await other)[0]) == (500, 500)
    assert await engine.exit_code(10.0) == 0


async def _refusal(engine: EngineUnderTest) -> int:
    """The first status of short requests that is not 200. Some may wait until the end."""
    asking: set[asyncio.Task[tuple[int, dict]]] = set()
    async with asyncio.timeout(HANG_S):
        while True:
            asking.add(asyncio.create_task(engine.generate(1)))
            done, asking = await asyncio.wait(asking, timeout=0.1)
            refused = [status for status, _ in (one.result() for one in done) if status != 200]
            if refused:
                for one in asking:
                    one.cancel()
                return refused[0]


def _outcome(status: int, body: dict) -> str:
    return str(status) if status != 200 else body["choices"][0]["finish_reason"]
