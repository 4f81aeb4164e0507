"""The engines of the tests in this folder, kept for the session."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import aiohttp
import pytest

from tests.contract.engines.harness import EngineUnderTest, Pool
from tests.hang_limit import HANG_S

Engines = Callable[..., Awaitable[EngineUnderTest]]


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    pool = Pool(tmp_path_factory.mktemp("engines"))
    # Engines with gigabytes of memory must not outlive interrupted tests.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield pool
    finally:
        pool.close()
        signal.signal(signal.SIGTERM, before)


@pytest.fixture
async def engines(pool: Pool) -> AsyncIterator[Engines]:
    """A function: `await engines("main")` returns that engine when it is ready.

    last: whether the test will end the engine.
    """
    timeout = aiohttp.ClientTimeout(total=HANG_S)
    taken: list[EngineUnderTest] = []
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as client:

        async def get(name: str, last: bool = False) -> EngineUnderTest:
            engine = EngineUnderTest(client, pool.start(name))
            await engine.ready()
            pool.look_ahead(name)
            if last:
                pool.take_out(name)
                taken.append(engine)
            return engine

        yield get
        for engine in taken:  # An engine that its test did not end would slow down the next test.
            engine.launched.kill()
