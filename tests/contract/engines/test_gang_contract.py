"""One instance over two processes, started like ranks on two nodes."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import aiohttp
import pytest

from tests.contract.engines.conftest import Pool
from tests.contract.engines.harness import REAL, EngineUnderTest
from tests.hang_limit import HANG_S


async def test_ranks_serve_together_and_end_separately(pool: Pool) -> None:
    """Only rank 0 answers, once all ranks have started. If another rank dies, requests hang while
    /health answers 200. A stop of rank 0 ends only rank 0.
    """
    first, other = pool.start_gang()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=HANG_S)) as client:
        engine = EngineUnderTest(client, first)
        await engine.ready()
        assert engine.launched.refused, "it was not ready before the others had come"
        status, body = await engine.generate(8)
        assert (status, body["usage"]["completion_tokens"]) == (200, 8)
        assert other.process.poll() is None
        assert not _listens(other.port)
        other.kill()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(engine.generate(8), 5.0)
        assert await engine.health() == 200
        assert first.process.poll() is None
        first.kill()


async def test_each_rank_ends_only_on_its_own_signal(pool: Pool) -> None:
    first, other = pool.start_gang()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=HANG_S)) as client:
        engine = EngineUnderTest(client, first)
        await engine.ready()
        # Long enough to be seen in progress on a loaded machine. (Two real ranks on two cores may
        # generate only two tokens per second.)
        tokens = 50 if REAL else engine.long
        job = asyncio.create_task(engine.generate(tokens))
        await engine.until_running(1)
        first.process.send_signal(signal.SIGTERM)
        status, body = await job
        assert (status, body["usage"]["completion_tokens"]) == (200, tokens)
        await engine.exit_code()
        await asyncio.sleep(3.0 if REAL else 0.2)
        assert other.process.poll() is None
        other.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(other.process.wait, HANG_S)
    other.kill()
    assert not first.tagged()


def _listens(port: int) -> bool:
    """Whether a process on this machine listens on `port`."""
    wanted = f":{port:04X}"
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return any(row[1].endswith(wanted) and row[3] == "0A" for row in rows)
