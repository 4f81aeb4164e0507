"""The gateway as a process: without a broker, after restarts, at shutdown, and
under supervision.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from executors.gateway.gateway_metrics import GatewayMetrics
from executors.gateway.route_table import RouteTable
from tests.hang_limit import HANG_S
from tests.integration.gateway.gateway_bench import FakeEngine
from topics.codec import decode, encode
from topics.records import RouteGroup, Routes
from topics.storage.checked_lines import checked_line, read_lines
from topics.storage.durable_files import DRAFT
from topics.time_base import TimeBase

NO_BROKER = "127.0.0.1:9"
BODY = {"model": "chat", "prompt": "a a", "stream": True, "max_tokens": 5}
Start = Callable[..., Any]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """A function that starts a gateway process and returns (process, its first line)."""
    async with AsyncExitStack() as stack:

        async def begin(
            *more: str, state: bool = True, **options: Any
        ) -> tuple[Process, dict[str, Any]]:
            base = TimeBase(10.0, 1_700_000_000_000, time.monotonic_ns())
            folder = ("--state-dir", str(tmp_path)) if state else ()
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "executors.gateway", "--broker", NO_BROKER,
                "--time-base", base.format(), *folder, *more,
                stdout=PIPE, stderr=PIPE, **options,
            )  # fmt: skip

            async def end() -> None:
                if process.returncode is None:
                    process.kill()
                    await process.communicate()

            stack.push_async_callback(end)
            assert process.stdout is not None
            line = await asyncio.wait_for(process.stdout.readline(), HANG_S)
            return process, json.loads(line) if line else {}

        yield begin


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    made = await FakeEngine("e").start()
    yield made
    await made.stop()


def routes_to(engine: FakeEngine, generation: int = 1) -> Routes:
    group = RouteGroup("g", 1.0, (engine.endpoint,))
    return Routes("chat", generation, 1, 0, 2000.0, 60.0, (group,))


async def ask(url: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as http,
        http.post(url + "/v1/completions", json=BODY) as answer,
    ):
        return answer.status, await answer.text()


async def test_the_last_routes_are_served_without_a_broker(
    start: Start, engine: FakeEngine, tmp_path: Path
) -> None:
    """This holds after SIGKILL and a restart of the gateway, too."""
    (tmp_path / "routes.jsonl").write_bytes(checked_line(encode(routes_to(engine))))
    for _ in range(2):
        process, ready = await start()
        assert ready["ready"] is True
        status, text = await ask(ready["url"])
        assert status == 200
        assert "e4" in text
        process.kill()
        await process.communicate()
    kept = list(read_lines(tmp_path / "routes.jsonl"))
    assert [decode("routes", text or b"") for text in kept] == [routes_to(engine)]


async def hold_one(start: Start, engine: FakeEngine, folder: Path, *more: str) -> Any:
    """A gateway whose engine processes one request: (process, its url, the request)."""
    (folder / "routes.jsonl").write_bytes(checked_line(encode(routes_to(engine))))
    process, ready = await start(*more)
    engine.mode = "gate"
    asking = asyncio.create_task(ask(ready["url"]))
    async with asyncio.timeout(HANG_S):
        while not engine.seen:
            await asyncio.sleep(0.01)
    return process, ready["url"], asking


async def refuses(url: str) -> None:
    """Wait until the gateway accepts no more connections."""
    parts = urlsplit(url)
    async with asyncio.timeout(HANG_S):
        with pytest.raises(ConnectionRefusedError):
            while True:
                _, writer = await asyncio.open_connection(parts.hostname, parts.port)
                writer.close()
                await asyncio.sleep(0.01)


async def test_sigterm_loses_no_request(start: Start, engine: FakeEngine, tmp_path: Path) -> None:
    """The gateway accepts no more requests, finishes the present ones, and ends."""
    process, url, asking = await hold_one(start, engine, tmp_path)
    process.send_signal(signal.SIGTERM)
    await refuses(url)
    assert process.returncode is None
    engine.gate.set()
    status, text = await asking
    assert (status, text.endswith("data: [DONE]\n\n")) == (200, True)
    await asyncio.wait_for(process.communicate(), HANG_S)
    assert process.returncode == 0


@pytest.mark.parametrize("again", [False, True])
async def test_a_drain_ends_at_its_deadline_or_at_a_second_signal(
    start: Start, engine: FakeEngine, tmp_path: Path, again: bool
) -> None:
    limit = str(2.0 * HANG_S) if again else "0.7"
    process, url, asking = await hold_one(start, engine, tmp_path, "--drain-s", limit)
    process.send_signal(signal.SIGTERM)
    if again:
        await refuses(url)
        process.send_signal(signal.SIGTERM)
    await asyncio.wait_for(process.communicate(), HANG_S)
    assert process.returncode == 0
    await asyncio.gather(asking, return_exceptions=True)


async def test_a_gateway_serves_without_a_state_folder(start: Start) -> None:
    process, ready = await start(state=False)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(process.wait(), timeout=1.0)
    async with aiohttp.ClientSession() as http, http.get(ready["url"] + "/health") as answer:
        assert answer.status == 200
    process.terminate()
    await process.communicate()
    assert process.returncode == 0


async def test_saving_routes_is_retried_until_it_succeeds(tmp_path: Path) -> None:
    """Otherwise a restart after a full disk would use outdated routes."""
    folder = tmp_path / "state"
    folder.mkdir()
    in_the_way = folder / f"routes.jsonl{DRAFT}"
    in_the_way.mkdir()
    metrics = GatewayMetrics()
    table = RouteTable(metrics, folder, 0.0)
    keeping = asyncio.create_task(table.save_changes())
    table.apply(Routes("chat", 1, 1, 0, 2000.0, 60.0))
    async with asyncio.timeout(HANG_S):
        while b"state_errors_total 1.0" not in metrics.exposition():
            await asyncio.sleep(0.01)
        in_the_way.rmdir()
        while not (folder / "routes.jsonl").exists():
            await asyncio.sleep(0.01)
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)


async def test_the_gateway_ends_with_its_supervisor(start: Start) -> None:
    read, write = os.pipe()
    environment = {**os.environ, "SHOAL_SUPERVISION_FD": str(read)}
    process, _ = await start(pass_fds=(read,), env=environment)
    os.close(read)
    os.close(write)
    await asyncio.wait_for(process.communicate(), HANG_S)
    assert process.returncode == 0


async def test_an_unusable_state_folder_is_reported_and_serving_continues(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "routes.jsonl").write_bytes(b"broken\n")
    process, ready = await start()
    async with aiohttp.ClientSession() as http:
        async with http.get(ready["url"] + "/health") as answer:
            assert answer.status == 200
        async with http.get(ready["url"] + "/metrics") as answer:
            assert "shoal:gateway_state_errors_total 1.0" in await answer.text()
    process.terminate()
    _, said = await process.communicate()
    assert b"routes.jsonl" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--time-base", "soon"), "time base"),
        (("--hold-s", "nan"), "hold-s"),
        (("--queue-s", "-1"), "queue-s"),
        (("--gateway-id", "a b"), "gateway-id"),
        (("--port", "65536"), "port"),
        (("--drain-s", "-1"), "drain-s"),
        (("--keys-file", "/nowhere/keys"), "/nowhere/keys"),
    ],
)
async def test_a_bad_option_gives_one_error_line(
    start: Start, options: tuple[str, str], said: str
) -> None:
    process, _ = await start(*options)
    _, error = await process.communicate()
    assert process.returncode == 2
    assert said in error.decode()
    assert len(error.decode().strip().splitlines()) == 1


async def test_a_port_in_use_gives_one_error_line(start: Start, engine: FakeEngine) -> None:
    process, _ = await start("--port", str(engine.port))
    _, error = await process.communicate()
    assert process.returncode == 2
    assert f"127.0.0.1:{engine.port}" in error.decode()
    assert "Traceback" not in error.decode()


async def test_workers_share_a_port_and_a_dead_one_restarts(
    start: Start, engine: FakeEngine, tmp_path: Path
) -> None:
    """Each worker has its own metrics. SIGTERM ends all of them."""
    for worker in ("w1", "w2"):
        (tmp_path / worker).mkdir()
        (tmp_path / worker / "routes.jsonl").write_bytes(checked_line(encode(routes_to(engine))))
    process, ready = await start("--workers", "2")
    assert len(ready["workers"]) == 2

    async def ended(url: str) -> float:
        async with aiohttp.ClientSession() as http, http.get(url + "/metrics") as answer:
            lines = (await answer.text()).splitlines()
        found = [line for line in lines if line.startswith("shoal:gateway_requests_total{")]
        return sum(float(line.rsplit(" ", 1)[1]) for line in found)

    async with asyncio.timeout(HANG_S):
        while not all([await ended(url) for url in ready["workers"]]):
            assert (await ask(ready["url"]))[0] == 200
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
    async with asyncio.timeout(HANG_S):
        now: list[str] = []
        while len(now) < 2 or children[0] in now:
            await asyncio.sleep(0.05)
            now = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.terminate()
    await asyncio.wait_for(process.communicate(), HANG_S)
    assert process.returncode == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in now)


async def test_no_worker_outlives_a_killed_parent(start: Start) -> None:
    process, _ = await start("--workers", "2", state=False)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 2
    process.kill()
    await process.wait()
    async with asyncio.timeout(HANG_S):
        while any(Path(f"/proc/{pid}").exists() for pid in children):
            await asyncio.sleep(0.05)
