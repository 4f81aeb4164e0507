"""Simulated worlds that write their ticks to a decision log, as the controller does."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

from autoscaler.decide import ControllerState, Effect, Observation, decide
from autoscaler.domain.cluster import Cluster
from streams.controller.tick_loop import TickResult
from streams.decision_log.log_writer import DecisionLog
from tests.unit.decide import decide_world
from tests.unit.decide.decide_world import World


class Calm(DecisionLog):
    """A log that never drops ticks: a virtual clock produces them faster than a disk can write."""

    def tick(self, done: TickResult) -> None:
        self._waiting.put(done)


def record(world: World, folder: Path, seconds: int, segment_s: int = 120, **limits: int) -> None:
    """Run `world` for `seconds` with a log in `folder`."""
    log = Calm(folder, "ctl-1", segment_s=segment_s, **limits)
    log.start()

    def recorded(
        state: ControllerState, seen: Observation, cluster: Cluster, now_ms: int
    ) -> tuple[ControllerState, tuple[Effect, ...]]:
        after, effects = decide(state, seen, cluster, now_ms)
        log.tick(TickResult(state, after, seen, cluster, now_ms, effects, 0.0))
        return after, effects

    with mock.patch.object(decide_world, "decide", recorded):
        world.run(seconds)
    log.close(30.0)
