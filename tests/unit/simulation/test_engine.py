"""One engine against times computed by hand."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from autoscaler.performance import catalog
from autoscaler.serving.requests import Limits, Part, Work
from autoscaler.serving.setup import EngineSetup
from autoscaler.simulation.agenda import Agenda
from autoscaler.simulation.engine import SimEngine


class FlatTimes:
    """A prompt token takes 0.1 ms, a decode iteration 10 ms, both together their sum."""

    first_token_ms = 5.0

    def prefill_ms(self, tokens: float, context: float = 0.0) -> float:
        return 0.1 * tokens

    def decode_ms(self, batch: float, context_tokens: float) -> float:
        return 10.0

    def mixed_ms(self, tokens: float, context: float, decodes: float, seen: float) -> float:
        return 0.1 * tokens + 10.0


@dataclass
class Watch:
    """A job that notes what it is told."""

    first: list[float] = field(default_factory=list)
    end: list[float] = field(default_factory=list)
    breaks: int = 0

    def first_token(self, at_ms: float) -> None:
        self.first.append(at_ms)

    def finished(self, at_ms: float) -> None:
        self.end.append(at_ms)

    def broken(self) -> None:
        self.breaks += 1


def engine(agenda: Agenda) -> SimEngine:
    setup = EngineSetup(catalog.model("openai/gpt-oss-20b"), FlatTimes(), Limits(8, 10_000), 1.0)
    return SimEngine(setup, agenda, "node:1")


def test_two_requests_share_iterations_as_computed_by_hand() -> None:
    """A: 1000 tokens in, 11 out at 0 ms; B: 500 in, 2 out at 105 ms."""
    agenda, a, b = Agenda(), Watch(), Watch()
    one = engine(agenda)
    agenda.at(0.0, lambda: one.submit(Work(1, 1000, 11), a))
    agenda.at(105.0, lambda: one.submit(Work(2, 500, 2), b))
    agenda.run(10_000.0)
    # A's prompt: 0 to 100. One decode of A: to 110. B's prompt with a decode of A: 60 ms, to 170.
    # Both decode once: to 180, where B ends. A has 1 + 1 + 1 + 1 tokens and needs 7 more: 250.
    assert a.first == [100.0]
    assert b.first == [170.0]
    assert b.end == [pytest.approx(180.0)]
    assert a.end == [pytest.approx(250.0)]
    assert one.in_flight == 0


def test_an_engine_that_dies_tells_everyone_inside_and_nobody_else() -> None:
    agenda, a, b = Agenda(), Watch(), Watch()
    one = engine(agenda)
    one.submit(Work(1, 100, 1), a)
    agenda.run(50.0)
    one.submit(Work(2, 1000, 100), b)
    agenda.run(200.0)
    one.die()
    agenda.run(10_000.0)
    assert (a.breaks, a.end) == (0, [10.0])
    assert (b.breaks, b.end) == (1, [])


def test_kv_of_a_prefill_is_held_until_it_was_given() -> None:
    agenda, job = Agenda(), Watch()
    one = engine(agenda)
    one.submit(Work(1, 1000, 1, Part.PREFILL), job)
    agenda.run(100.0)
    assert (job.end, one.held_kv) == ([100.0], 1)
    assert one.give_kv(1, 40.0)
    agenda.run(139.0)
    assert one.held_kv == 1
    agenda.run(141.0)
    assert one.held_kv == 0
    assert not one.give_kv(1, 40.0)
