"""When a controller merges the telemetry in place of window workers, and when it stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from streams.ports import worker_demand
from streams.ports.merging import Merger, Merging
from streams.ports.worker_demand import WorkerDemand
from tests.hang_limit import HANG_S
from topics.time_base import TimeBase


class Reader:
    """A reader that is followed until it is cancelled. starts: offsets at which it begins."""

    def __init__(self, starts: Mapping[int, int] | None = None) -> None:
        self.starts = starts
        self.followed = False
        self.done = True
        self.lags: tuple[Any, ...] = ()
        self.written: dict[int, int] = {}
        self.news = asyncio.Event()
        self.merged = SimpleNamespace(counted={}, start=lambda number: 3 if number == 0 else None)
        self.behind = SimpleNamespace(late_s=dict)
        self.clock = SimpleNamespace(time_base=TimeBase(1000.0))

    def has_merged(self, _ends: Mapping[int, int]) -> bool:
        return self.done

    async def replay(self, _sink: Any) -> None: ...

    async def live(self) -> None: ...

    async def follow(self, _sink: Any) -> None:
        self.followed = True
        try:
            await asyncio.Event().wait()
        finally:
            self.followed = False


class World:
    """Workers that merge `written` and a log that ends at `end`, in one partition."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(worker_demand, "_EVERY_S", 0.0)
        monkeypatch.setattr(worker_demand, "_LEAST_LATE_S", 0.01)
        self.now_s = 0.0
        self.end = 10
        self.works = True
        self.demand, self.own = Reader(), list[Reader]()
        self.source = WorkerDemand(
            self.demand, self._make_own, self, lambda: self.now_s, steady_s=5.0  # type: ignore[arg-type]
        )  # fmt: skip

    def _make_own(self, starts: Mapping[int, int]) -> Any:
        self.own.append(Reader(starts))
        return self.own[-1]

    async def query(self) -> Mapping[int, int]:
        """Append a record. Workers and the controller's own reader merge it."""
        await asyncio.sleep(0)
        self.end += 1
        if self.works:
            self.demand.written[0] = self.end
        if self.works or (self.own and self.own[-1].followed):
            self.demand.merged.counted[0] = self.end
        self.demand.news.set()
        return {0: self.end, 1: 0}

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(HANG_S):
            while not condition():
                await asyncio.sleep(0)

    def merger(self, merger: Merger) -> Callable[[], bool]:
        return lambda: self.source.merging().merger is merger


async def test_a_controller_merges_while_workers_are_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It also merges until the workers are known to be in time. Its own reader starts where the
    workers were.
    """
    world = World(monkeypatch)
    await world.source.replay(lambda *_: None)
    assert world.source.merging() == Merging(Merger.CONTROLLER, 0.0)
    task = asyncio.create_task(world.source.follow(lambda *_: None))
    try:
        await world.until(world.merger(Merger.WORKERS))
        await world.until(lambda: not world.own[0].followed)
        await world.source.live()
        world.works, world.now_s = False, 7.0
        await world.until(world.merger(Merger.WORKERS_LATE))
        assert world.own[1].starts == {0: 3}
        await world.until(lambda: world.own[1].followed)
        world.now_s = 27.0
        assert world.source.merging().late_s in (20.0, 27.0)
        world.works = True
        world.now_s += 6.0
        await world.until(world.merger(Merger.WORKERS))
        await world.until(lambda: not world.own[1].followed)
        assert world.source.merging() == Merging(Merger.WORKERS, 0.0)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_no_record_is_skipped_at_the_return_of_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The workers are in time, but the controller has not counted up to their records."""
    world = World(monkeypatch)
    await world.source.replay(lambda *_: None)
    world.demand.written[1] = 99
    task = asyncio.create_task(world.source.follow(lambda *_: None))
    try:
        end = world.end + 20
        await world.until(lambda: world.end > end)
        assert world.own[0].followed
        world.demand.merged.counted[1], world.own[0].done = 99, False
        end = world.end + 20
        await world.until(lambda: world.end > end)
        assert world.own[0].followed, "it has not merged some quiet partition"
        world.own[0].done = True
        await world.until(world.merger(Merger.WORKERS))
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
