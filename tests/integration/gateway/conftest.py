"""Fixture with a gateway in the test's process, and engines and a broker under
control of the test.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from executors.gateway.gateway_server import Gateway
from executors.gateway.gateway_settings import Clock, GatewaySettings
from tests.integration.gateway.gateway_bench import Bench, FakeLink, MakeBench
from topics.time_base import TimeBase


@pytest.fixture
async def bench() -> AsyncIterator[MakeBench]:
    """A function that makes a bench. It takes fields of GatewaySettings, and `speed`."""
    async with AsyncExitStack() as stack:

        async def make(
            speed: float = 10.0,
            keys_file: Path | None = None,
            state_dir: Path | None = None,
            **options: Any,
        ) -> Bench:
            made = Bench(stack, FakeLink())
            clock = Clock(TimeBase(speed, 1_700_000_000_000, time.monotonic_ns()))
            settings = GatewaySettings("gateway-1", **options)
            made.http = await stack.enter_async_context(aiohttp.ClientSession())
            made.gateway = await stack.enter_async_context(
                Gateway(settings, clock, made.link, state_dir=state_dir, keys_file=keys_file)
            )
            return made

        yield make
