"""The gateway process with the embedded broker: routes, telemetry, and a broker that fails."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import pytest

from executors.kafka_client import KafkaClient
from tests.hang_limit import HANG_S
from tests.integration.gateway.gateway_bench import FakeEngine, until
from tests.tcp_service import TcpService
from topics.codec import encode
from topics.edge.kafka_clients import producer
from topics.records import Leadership, RouteGroup, Routes, Telemetry
from topics.time_base import TimeBase
from topics.topic_table import LEADERSHIP, PREFIX, ROUTES

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


async def test_a_gateway_keeps_its_routes_until_a_new_broker_has_others(
    spawn: Spawn, tmp_path: Path
) -> None:
    """The topics of a new embedded broker begin again: with lower tokens and generations, and with
    records at the offsets that the gateway has read in the former one."""
    base = TimeBase(10.0, 1_700_000_000_000, time.monotonic_ns())
    engines = [await FakeEngine(name).start() for name in ("first", "second", "third")]
    service = TcpService()
    gateway_options = ("--time-base", base.format(), "--state-dir", str(tmp_path / "g"),
                       "--gateway-id", "gateway-7")  # fmt: skip

    async def write(bootstrap: str, token: int, to: FakeEngine, records: int) -> None:
        """Claims up to `token`, and `records` routes of which the last one leads to `to`."""
        async with KafkaClient(bootstrap, "test") as kafka:
            await until(lambda: kafka.connected)
            for number in range(token):
                await kafka.publish("leadership", "claim", Leadership("c", f"{number}", "claim", 0))
            for generation in range(1, records + 1):
                groups = (RouteGroup("g", 1.0, (to.endpoint,)),) if generation == records else ()
                record = Routes("chat", generation, token, 0, 2000.0, 60.0, groups)
                assert await kafka.publish("routes", "chat", record)

    async with service.running(), aiohttp.ClientSession() as http:
        broker, hello = await spawn("streams.broker")
        await write(hello["bootstrap"], 5, engines[0], 9)
        service.endpoints = [int(hello["bootstrap"].rpartition(":")[2])]
        address = ("--broker", f"127.0.0.1:{service.port}")
        process, ready = await spawn("executors.gateway", *address, *gateway_options)

        async def answered_by(engine: FakeEngine, url: str) -> bool:
            before = len(engine.seen)
            body = {"model": "chat", "prompt": "a", "stream": True}
            async with http.post(url + "/v1/completions", json=body) as answer:
                assert answer.status == 200 and "[DONE]" in await answer.text()
            return len(engine.seen) > before

        async def until_answered_by(engine: FakeEngine, url: str) -> None:
            async with asyncio.timeout(HANG_S):
                while not await answered_by(engine, url):
                    await asyncio.sleep(0.05)

        await until_answered_by(engines[0], ready["url"])
        service.endpoints = []
        broker.kill()
        await broker.wait()
        assert await answered_by(engines[0], ready["url"])
        _, hello = await spawn("streams.broker")
        service.endpoints = [int(hello["bootstrap"].rpartition(":")[2])]
        async with KafkaClient(hello["bootstrap"], "test") as kafka:
            seen: list[Telemetry] = []
            kafka.follow(("telemetry",), lambda topic, key, record, _ms: seen.append(record))
            # The gateway confirms no generation of the new broker, which has none yet.
            await until(lambda: len(seen) > 0 and seen[-1].route_generation == 0, 20.0)
        assert await answered_by(engines[0], ready["url"])
        await write(hello["bootstrap"], 2, engines[1], 3)
        await until_answered_by(engines[1], ready["url"])

        # Its saved routes have higher tokens than those of the next broker.
        saved = tmp_path / "g" / "routes.jsonl"
        await until(lambda: engines[1].endpoint.address in saved.read_text())
        process.terminate()
        assert await process.wait() == 0
        _, hello = await spawn("streams.broker")
        await write(hello["bootstrap"], 1, engines[2], 1)
        service.endpoints = []
        _, ready = await spawn("executors.gateway", *address, *gateway_options)
        assert await answered_by(engines[1], ready["url"])
        service.endpoints = [int(hello["bootstrap"].rpartition(":")[2])]
        await until_answered_by(engines[2], ready["url"])
    for engine in engines:
        await engine.stop()


async def test_a_thousand_names_that_went_leave_nothing_in_a_gateway(
    spawn: Spawn, tmp_path: Path
) -> None:
    """A request to a gone name gets 404 within 50 ms; on a busy machine, as soon as one to a name
    that never was."""
    _, hello = await spawn("streams.broker")
    base = TimeBase(10.0, 1_700_000_000_000, time.monotonic_ns())
    names = [f"m{number}" for number in range(1000)]
    writer = producer(hello["bootstrap"], "test")
    await writer.start()
    async with aiohttp.ClientSession() as http:

        async def write(records: dict[str, Routes | None]) -> None:
            for name, record in records.items():
                value = encode(record) if record is not None else None
                await writer.send(ROUTES.wire_name(PREFIX), value, key=name.encode())
            await writer.flush()

        claim = encode(Leadership("c", "one", "claim", 0))
        await writer.send_and_wait(LEADERSHIP.wire_name(PREFIX), claim, key=b"claim")
        await write({"stays": Routes("stays", 1, 1, 0, 2000.0, 60.0)})
        process, ready = await spawn(
            "executors.gateway", "--broker", hello["bootstrap"], "--time-base", base.format(),
            "--state-dir", str(tmp_path), "--gateway-id", "gateway-7",
        )  # fmt: skip

        async def served() -> set[str]:
            async with http.get(ready["url"] + "/v1/models") as answer:
                return {one["id"] for one in (await answer.json())["data"]}

        async def until_served(wanted: set[str]) -> None:
            async with asyncio.timeout(HANG_S):
                while await served() != wanted:
                    await asyncio.sleep(0.05)

        async def refused_s(model: str) -> float:
            began_s = time.monotonic()
            body = {"model": model, "prompt": "a"}
            async with http.post(ready["url"] + "/v1/completions", json=body) as answer:
                assert answer.status == 404
            return time.monotonic() - began_s

        def memory_kib() -> int:
            status = Path(f"/proc/{process.pid}/status").read_text()
            return int(status.partition("RssAnon:")[2].split()[0])

        await until_served({"stays"})
        memory: list[int] = []
        for round_ in range(2):  # the first round fills caches
            for step, withdrawn in enumerate((False, True)):
                record = Routes("m", 2 * round_ + step + 1, 1, 0, 2000.0, 60.0, withdrawn=withdrawn)
                await write({name: replace(record, model=name) for name in names})
                await until_served({"stays"} if withdrawn else {"stays", *names})
            gone_s, never_s = [], []
            for name in names[:100]:  # in turn, so that both meet the same load
                gone_s.append(await refused_s(name))
                never_s.append(await refused_s(f"never-{name}"))
            await write(dict.fromkeys(names))
            memory.append(memory_kib())
    await writer.stop()
    assert median(gone_s) < max(0.05, 2.0 * median(never_s))
    assert memory[1] < memory[0] + 4 * len(names), "KiB"
