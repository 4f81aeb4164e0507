"""Engine probes: progress or a token proves that an engine is alive; a slow HTTP answer proves
nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from executors.engines.engine_protocol import Contact, EngineKind, Load
from executors.node.engine_probes import EngineProbe, ProbeTimeouts


class Engine:
    """An engine that reports its load at once. The test decides its answer to a token probe."""

    def __init__(self) -> None:
        self.tokens = 0.0
        self.told = True
        self.asked: list[asyncio.Future[bool]] = []

    async def load(self, _: Contact) -> Load | None:
        return Load(1, 0, 0, self.tokens) if self.told else None

    async def alive(self, _: Contact) -> bool:
        self.asked.append(asyncio.get_running_loop().create_future())
        return await self.asked[-1]


class Bench:
    """A probed engine and the present time, in s."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine, self.now_s = Engine(), 100.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now_s)
        kind = cast(EngineKind, self.engine)
        patience = ProbeTimeouts(no_progress_s=5.0, token_timeout_s=5.0)
        self.watch = EngineProbe(kind, cast(Any, None), patience)

    async def after(self, seconds: float) -> bool | None:
        self.now_s += seconds
        healthy = (await self.watch.check_live()).healthy
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return healthy


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    made = Bench(monkeypatch)
    yield made
    made.watch.close()
    monkeypatch.undo()


async def test_an_engine_with_growing_token_counts_gets_no_token_probe(bench: Bench) -> None:
    for _ in range(20):
        bench.engine.tokens += 1
        assert await bench.after(4.0) is True
    assert bench.engine.asked == []


async def test_an_engine_without_progress_is_unhealthy_once_its_token_is_overdue(
    bench: Bench,
) -> None:
    """A late token still proves the engine alive."""
    assert await bench.after(1.0) is True
    assert await bench.after(6.0) is None
    assert await bench.after(4.0) is None
    assert await bench.after(2.0) is False
    assert len(bench.engine.asked) == 1
    bench.engine.asked[0].set_result(True)
    await asyncio.sleep(0)
    assert await bench.after(1.0) is True


async def test_an_engine_that_refuses_the_token_probe_is_unhealthy_and_probed_again(
    bench: Bench,
) -> None:
    assert await bench.after(1.0) is True
    assert await bench.after(6.0) is None
    bench.engine.asked[0].set_result(False)
    await asyncio.sleep(0)
    assert await bench.after(1.0) is False
    assert await bench.after(1.0) is None
    assert len(bench.engine.asked) == 2


async def test_a_missing_load_report_alone_is_no_sign_of_failure(bench: Bench) -> None:
    bench.engine.told = False
    assert await bench.after(1.0) is True
    assert await bench.after(6.0) is None
    bench.engine.asked[0].set_result(True)
    await asyncio.sleep(0)
    assert await bench.after(1.0) is True
