"""One engine, compared with times that were computed by hand."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from autoscaler.performance import catalog, pass_kernel
from autoscaler.performance.timing_grid import TimingGrid
from autoscaler.serving.engine_requests import Limits, Part, Work
from autoscaler.serving.engine_setup import EngineSetup
from autoscaler.simulation import engine_process as engine_module
from autoscaler.simulation.engine_process import SimEngine
from autoscaler.simulation.event_queue import EventQueue


class FlatTimes:
    """The step times that `EngineSetup` needs. The steps themselves are in `flat_grid`."""

    first_token_ms = 5.0

    def prefill_ms(self, tokens: float, context: float = 0.0) -> float:
        return 10.0 + 0.1 * tokens


def flat_grid(_times: object, batched_tokens: int) -> TimingGrid:
    """A timing grid in which every iteration takes 10 ms, plus 0.1 ms per token."""
    scalars = np.zeros(pass_kernel.SCALARS)
    scalars[pass_kernel.BLEND], scalars[pass_kernel.STEP] = 1.0, 10.0
    tokens = np.arange(batched_tokens + 1, dtype=float)
    passes = np.stack([0.1 * tokens, np.zeros(len(tokens))])
    return TimingGrid(scalars, passes, np.zeros(64), np.ones(len(tokens)), np.ones((1, 1)))


@pytest.fixture(autouse=True)
def flat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "timing_grid", flat_grid)


@dataclass
class Watch:
    """A job that records every call."""

    first: list[float] = field(default_factory=list)
    end: list[float] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)
    breaks: int = 0

    def first_token(self, at_ms: float, cached_tokens: int) -> None:
        self.first.append(at_ms)
        self.cached.append(cached_tokens)

    def finished(self, at_ms: float) -> None:
        self.end.append(at_ms)

    def broken(self) -> None:
        self.breaks += 1


def engine(events: EventQueue) -> SimEngine:
    setup = EngineSetup(catalog.model("openai/gpt-oss-20b"), FlatTimes(), Limits(8, 10_000), 1.0)
    return SimEngine(setup, events, "node:1")


def test_two_requests_share_iterations_as_computed_by_hand() -> None:
    """Request A arrives at 0 ms with 1000 input and 11 output tokens, request B at 115 ms with 500
    and 2.
    """
    events, a, b = EventQueue(), Watch(), Watch()
    one = engine(events)
    events.at(0.0, lambda: one.submit(Work(1, 1000, 11), a))
    events.at(115.0, lambda: one.submit(Work(2, 500, 2), b))
    events.run(10_000.0)
    # A's prompt: 0 to 110. One decode of A: to 120.1. B's prompt with a decode of A: 60.1 ms, to
    # 180.2. Both decode once: to 190.4, where B ends. A has 4 tokens and needs 7 more: 261.1.
    assert a.first == [110.0]
    assert b.first == [pytest.approx(180.2)]
    assert b.end == [pytest.approx(190.4)]
    assert a.end == [pytest.approx(261.1)]
    assert (one.in_flight, one.finished) == (0, 2)


def test_an_ended_engine_fails_exactly_its_own_requests() -> None:
    events, a, b = EventQueue(), Watch(), Watch()
    one = engine(events)
    one.submit(Work(1, 100, 1), a)
    events.run(50.0)
    one.submit(Work(2, 1000, 100), b)
    events.run(200.0)
    one.die()
    events.run(10_000.0)
    assert (a.breaks, a.end) == (0, [20.0])
    assert (b.breaks, b.end) == (1, [])


def test_kv_of_a_prefill_is_kept_until_its_transfer() -> None:
    events, job = EventQueue(), Watch()
    one = engine(events)
    one.submit(Work(1, 1000, 1, Part.PREFILL), job)
    events.run(110.0)
    assert (job.end, one.held_kv) == ([110.0], 1)
    assert one.transfer_kv(1, 40.0)
    events.run(149.0)
    assert one.held_kv == 1
    events.run(151.0)
    assert one.held_kv == 0
    assert not one.transfer_kv(1, 40.0)


def test_an_engine_with_blocks_caches_prefixes() -> None:
    events = EventQueue()
    limits = Limits(8, 10_000, block_tokens=100)
    one = SimEngine(
        EngineSetup(catalog.model("openai/gpt-oss-20b"), FlatTimes(), limits, 1.0), events, "node:1"
    )
    watch = Watch()
    for number in range(2):
        one.submit(Work(number, 250, 1, blocks=(1, 2)), watch)
        events.run(1000.0 * (number + 1))
    assert watch.first == watch.end == [35.0, 1015.0]
    assert watch.cached == [0, 200]
