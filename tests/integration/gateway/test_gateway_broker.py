"""The gateway process with the embedded broker: routes, telemetry, and a broker that fails."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from executors.kafka_client import KafkaClient
from tests.hang_limit import HANG_S
from tests.integration.gateway.gateway_bench import FakeEngine, until
from topics.records import Leadership, RouteGroup, Routes, Telemetry
from topics.time_base import TimeBase

Spawn = Callable[..., Any]


@pytest.fixture
async def spawn() -> AsyncIterator[Spawn]:
    """A function that starts a module and returns (process, its first line)."""
    async with AsyncExitStack() as stack:

        async def begin(module: str, *options: str) -> tuple[Process, dict[str, Any]]:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", module, *options, stdout=PIPE, stderr=DEVNULL
            )

            async def end() -> None:
                if process.returncode is None:
                    process.kill()
                    await process.wait()

            stack.push_async_callback(end)
            assert process.stdout is not None
            return process, json.loads(await asyncio.wait_for(process.stdout.readline(), HANG_S))

        yield begin


async def test_routes_and_telemetry_pass_the_broker_and_serving_continues_without_it(
    spawn: Spawn, tmp_path: Path
) -> None:
    """Routes of a former or forged leader change nothing."""
    broker, hello = await spawn("streams.broker")
    base = TimeBase(10.0, 1_700_000_000_000, time.monotonic_ns())
    engine, other = await FakeEngine("e").start(), await FakeEngine("other").start()
    seen: list[Telemetry] = []
    async with KafkaClient(hello["bootstrap"], "test") as kafka, aiohttp.ClientSession() as http:
        kafka.follow(("telemetry",), lambda topic, key, record, _ms: seen.append(record))
        await until(lambda: kafka.connected)
        for claim in ("one", "two"):
            await kafka.publish("leadership", "claim", Leadership("c", claim, "claim", 0))
        _, ready = await spawn(
            "executors.gateway", "--broker", hello["bootstrap"], "--time-base", base.format(),
            "--state-dir", str(tmp_path), "--gateway-id", "gateway-7",
        )  # fmt: skip

        async def route(to: FakeEngine, generation: int, token: int) -> None:
            group = RouteGroup("g", 1.0, (to.endpoint,))
            record = Routes("chat", generation, token, 0, 2000.0, 60.0, (group,))
            assert await kafka.publish("routes", "chat", record)

        async def ask() -> str:
            body = {"model": "chat", "prompt": "a", "stream": True}
            async with http.post(ready["url"] + "/v1/completions", json=body) as answer:
                return await answer.text()

        await route(engine, 4, 2)
        assert "e0" in await ask()  # The request waited for the routes.
        await until(lambda: sum(record.completions for record in seen) == 1, 20.0)
        assert {record.gateway for record in seen} == {"gateway-7"}
        assert seen[-1].route_generation == 4
        await route(other, 9, 1)
        await route(other, 1, 10**12)  # No claim has this leader token.
        await route(engine, 5, 2)
        await until(lambda: seen[-1].route_generation == 5, 20.0)
        assert "e0" in await ask()
        assert not other.seen
        broker.kill()
        await broker.wait()
        assert "e0" in await ask()
        await until(lambda: len(engine.seen) == 3)
    await engine.stop()
    await other.stop()
