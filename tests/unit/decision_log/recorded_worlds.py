"""Simulated worlds that write their ticks to a decision log, as the controller does."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest import mock

from autoscaler.decide import ControllerState, Effect, Observation, decide
from autoscaler.domain.cluster import Cluster
from streams.decision_log.log_writer import DecisionLog
from streams.loop.tick_loop import TickResult
from tests.unit.decide import decide_world
from tests.unit.decide.decide_world import World, world


class Calm(DecisionLog):
    """A log that never drops ticks: a virtual clock produces them faster than a disk can write."""

    def tick(self, done: TickResult) -> None:
        self._waiting.put(done)


@functools.cache
def some_ticks(count: int = 200) -> tuple[TickResult, ...]:
    """The ticks of a small fleet. Every call returns the same objects."""
    found: list[TickResult] = []
    _watch(world(lambda _model, t: 30.0 if t > 60 else 6.0, seed=3), count, found.append)
    return tuple(found)


def write(folder: Path, ticks: Iterable[TickResult], **options: Any) -> DecisionLog:
    """Write `ticks` to a log in `folder` in this thread. The log retries a second after a fault, by
    the clock of the ticks."""
    now_ms = 0
    log = DecisionLog(folder, "ctl-1", monotonic_s=lambda: now_ms / 1000.0, **options)
    for done in ticks:
        now_ms = done.now_ms
        log.record(done)
    log.end()
    return log


def record(run: World, folder: Path, seconds: int, segment_s: int = 120, **limits: int) -> None:
    """Run `run` for `seconds` with a log in `folder`."""
    log = Calm(folder, "ctl-1", segment_s=segment_s, **limits)
    log.start()
    _watch(run, seconds, log.tick)
    log.close(30.0)


def _watch(run: World, seconds: int, watcher: Callable[[TickResult], None]) -> None:
    """Run `run` for `seconds` and call `watcher` with each tick."""

    def recorded(
        state: ControllerState, seen: Observation, cluster: Cluster, now_ms: int
    ) -> tuple[ControllerState, tuple[Effect, ...]]:
        after, effects = decide(state, seen, cluster, now_ms)
        watcher(TickResult(state, after, seen, cluster, now_ms, effects, 0.0))
        return after, effects

    with mock.patch.object(decide_world, "decide", recorded):
        for _ in range(seconds):
            run.tick()
