"""`shoal single`: one process tree on an embedded broker."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from streams.cli.main import main
from tests.certificates import make_certificate
from tests.hang_limit import HANG_S
from tests.integration.child_processes import modules_of

CONFIG = """
regions:
  us: {l4: {gpu: L4, max: 2, price: 0.7}}
models:
  tiny:
    source: meta-llama/Llama-3.1-8B-Instruct
    slo: {ttft: 2s, tpot: 100ms}
    workload: {req_per_s: 1, input: 500, output: 100}
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Any]:
    (tmp_path / "shoal.yaml").write_text(CONFIG)
    started: list[asyncio.subprocess.Process] = []

    async def begin(*options: str) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "streams.cli.entry", "single",
            "--config", str(tmp_path / "shoal.yaml"), *options,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def answer(url: str, limit_s: float = 180.0) -> int:
    """The status of `url` as soon as something answers there."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(limit_s):
        while True:
            try:
                async with session.get(url) as got:
                    return got.status
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.1)


async def until_ready(url: str) -> None:
    async with asyncio.timeout(HANG_S):
        while await answer(url) != 200:
            await asyncio.sleep(0.2)


async def test_a_signal_stops_all_parts(start: Any) -> None:
    controller, gateway = free_port(), free_port()
    process = await start(
        "--controller",
        f"--http 127.0.0.1:{controller} --record ''",
        "--gateway",
        f"--port {gateway}",
    )
    assert await answer(f"http://127.0.0.1:{controller}/livez") == 200
    assert await answer(f"http://127.0.0.1:{gateway}/livez") == 200
    await until_ready(f"http://127.0.0.1:{controller}/readyz")
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(HANG_S):
        await process.communicate()
    assert process.returncode == 0
    for port in (controller, gateway):
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)


async def test_a_part_that_is_killed_starts_again_while_the_gateway_serves(start: Any) -> None:
    controller, gateway = free_port(), free_port()
    process = await start(
        f"--controller=--http 127.0.0.1:{controller} --record ''", f"--gateway=--port {gateway}"
    )
    ready = f"http://127.0.0.1:{controller}/readyz"
    await until_ready(ready)
    await asyncio.sleep(10)  # parts that end sooner are not started again
    before = modules_of(process.pid)
    os.kill(before["controller"], signal.SIGKILL)
    with pytest.raises(aiohttp.ClientConnectionError):
        while True:
            async with aiohttp.ClientSession() as session, session.get(ready):
                pass
    assert await answer(f"http://127.0.0.1:{gateway}/livez") == 200
    await until_ready(ready)
    after = modules_of(process.pid)
    assert after["controller"] != before["controller"]
    assert {**after, "controller": 0} == {**before, "controller": 0}
    os.kill(after["broker"], signal.SIGKILL)
    async with asyncio.timeout(HANG_S):
        _, said = await process.communicate()
    assert process.returncode == 1
    assert b"the controller ended with code -9; starting it again" in said
    assert b"the broker ended with code -9" in said


async def test_a_new_part_that_ends_ends_all(start: Any) -> None:
    controller = free_port()
    process = await start(
        "--controller", f"--http 127.0.0.1:{controller} --record ''", "--gateway", "--port 99999"
    )
    async with asyncio.timeout(HANG_S):
        _, said = await process.communicate()
    assert process.returncode == 1
    assert b"the gateway ended with code 2" in said
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", controller)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ((), "no part is given"),
        (("--gateway=", "--broker-listen=127.0.0.1:1"), "--broker-listen together with"),
        (("--gateway=", "--broker-tls=TLS"), "--broker-listen together with --broker-tls"),
        (("--gateway=", "--broker-listen=here", "--broker-tls=TLS"), "'here' is not allowed"),
        (("--gateway=", "--broker-listen=127.0.0.1:1", "--broker-tls=/none"), "--broker-tls /none"),
    ],
)
def test_bad_options_are_named(
    tmp_path: Path, options: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shoal.yaml").write_text(CONFIG)
    folder = make_certificate(tmp_path / "tls")
    given = [one.replace("TLS", str(folder)) for one in options]
    assert main(["single", "--config", str(tmp_path / "shoal.yaml"), *given]) == 2
    assert reason in capsys.readouterr().err


async def test_an_address_of_another_host_is_named(start: Any, tmp_path: Path) -> None:
    folder = make_certificate(tmp_path / "tls")
    listen = "--broker-listen=192.0.2.1:9"
    process = await start("--gateway=", listen, f"--broker-tls={folder}")
    _, said = await process.communicate()
    assert process.returncode == 2 and b"--broker-listen 192" in said, said
