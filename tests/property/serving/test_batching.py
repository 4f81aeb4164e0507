"""The Batcher over generated requests: none is lost, none is overtaken, and KV stays within its
limits.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.domain.validation import InvalidValue
from autoscaler.serving.batching import Batcher
from autoscaler.serving.engine_requests import (
    Finished,
    FirstToken,
    LeaseExpired,
    Limits,
    Part,
    Tokens,
    Work,
)


class Linear:
    """Step times that are linear in tokens and context, like a roofline within one regime."""

    def prefill_ms(self, tokens: float, context: float = 0.0) -> float:
        return 3.0 + 0.5 * tokens + 0.001 * tokens * max(context, 0.0)

    def decode_ms(self, batch: float, context_tokens: float) -> float:
        return 5.0 + 0.25 * batch + 0.01 * batch * context_tokens

    def mixed_ms(
        self, prompt_tokens: float, prompt_context: float, decodes: float, context_tokens: float
    ) -> float:
        return self.prefill_ms(prompt_tokens, prompt_context) + self.decode_ms(
            decodes, context_tokens
        )


@dataclass
class Outcome:
    tokens: dict[int, int] = field(default_factory=dict)
    first_ms: dict[int, float] = field(default_factory=dict)
    finished_ms: dict[int, float] = field(default_factory=dict)
    expired: set[int] = field(default_factory=set)

    def take(self, events: list) -> None:
        for event in events:
            if isinstance(event, FirstToken):
                assert event.id not in self.first_ms, "one first token"
                self.first_ms[event.id] = event.at_ms
                self.tokens[event.id] = 1
            elif isinstance(event, Tokens):
                assert event.count > 0
                self.tokens[event.id] += event.count
            elif isinstance(event, Finished):
                assert event.id not in self.finished_ms, "one end"
                self.finished_ms[event.id] = event.at_ms
            elif isinstance(event, LeaseExpired):
                self.expired.add(event.id)


PARTS = st.sampled_from([Part.WHOLE, Part.WHOLE, Part.PREFILL, Part.DECODE])


@st.composite
def arrivals(draw: st.DrawFn) -> list[tuple[float, Work]]:
    """Requests in order of their arrival times; each fits a KV cache of 120 tokens."""
    found = []
    at_ms = 0.0
    for number in range(draw(st.integers(1, 25))):
        at_ms += draw(st.floats(0, 60))
        part = draw(PARTS)
        output = 1 if part is Part.PREFILL else draw(st.integers(1, 40))
        transfer = draw(st.floats(0, 50)) if part is Part.DECODE else 0.0
        found.append((at_ms, Work(number, draw(st.integers(1, 80)), output, part, transfer)))
    return found


LIMITS = st.builds(
    Limits,
    max_seqs=st.integers(1, 6),
    kv_tokens=st.just(120),
    batched_tokens=st.sampled_from([8, 20, 200]),
    lease_ms=st.sampled_from([0.0, 40.0, 300.0]),
)


def play(limits: Limits, work: list[tuple[float, Work]], extra: list[float]) -> Outcome:
    """Submit all requests and run until all have ended.

    The run also pauses at the `extra` times.
    """
    machine, outcome = Batcher(Linear(), limits), Outcome()
    points = sorted([(at, 0, item) for at, item in work] + [(at, 1, None) for at in extra],
                    key=lambda point: point[:2])  # fmt: skip
    for at_ms, _, item in points:
        outcome.take(machine.advance(at_ms))
        check_bounds(machine, limits)
        if item is not None:
            machine.submit(item)
    at_ms = points[-1][0]
    for _ in range(5000):
        outcome.take(machine.advance(at_ms))
        check_bounds(machine, limits)
        wake_ms = machine.next_event_ms()
        if wake_ms == float("inf"):
            break
        at_ms = max(at_ms, wake_ms)
    assert machine.running == machine.waiting == machine.loading == machine.held_leases == 0
    assert machine.kv_usage == 0.0, "all KV comes back"
    return outcome


def check_bounds(machine: Batcher, limits: Limits) -> None:
    assert 0.0 <= machine.kv_usage <= 1.0
    assert 0 <= machine.running + machine.loading <= limits.max_seqs
    assert machine.waiting >= 0


@settings(max_examples=150, deadline=None)
@given(LIMITS, arrivals(), st.lists(st.floats(0, 2000), max_size=20))
def test_every_request_gets_its_tokens_once_and_kv_stays_within_its_limits(
    limits: Limits, work: list[tuple[float, Work]], extra: list[float]
) -> None:
    """Times never decrease, and all leases end."""
    outcome = play(limits, work, extra)
    for at_ms, item in work:
        assert outcome.tokens[item.id] == item.output_tokens
        assert at_ms < outcome.first_ms[item.id] <= outcome.finished_ms[item.id]
    assert outcome.expired == {item.id for _, item in work if item.part is Part.PREFILL}


@settings(max_examples=100, deadline=None)
@given(LIMITS, arrivals(), st.lists(st.floats(0, 2000), max_size=20))
def test_pauses_do_not_change_the_times(
    limits: Limits, work: list[tuple[float, Work]], extra: list[float]
) -> None:
    """A jump over k iterations gives the times of k single iterations with pauses."""
    direct, paused = play(limits, work, []), play(limits, work, extra)
    assert direct.tokens == paused.tokens
    for number, first_ms in direct.first_ms.items():
        assert paused.first_ms[number] == pytest.approx(first_ms, abs=1e-6)
        assert paused.finished_ms[number] == pytest.approx(direct.finished_ms[number], abs=1e-6)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 50), st.integers(1, 60)), min_size=2, max_size=20),
    st.integers(1, 4),
)
def test_first_come_first_served(gaps: list[tuple[float, int]], max_seqs: int) -> None:
    """Unless capacity is missing, whole requests get their first token in the order of arrival."""
    limits = Limits(max_seqs, kv_tokens=100_000, batched_tokens=64)
    at_ms, work = 0.0, []
    for number, (gap, prompt) in enumerate(gaps):
        at_ms += gap
        work.append((at_ms, Work(number, prompt, 3)))
    outcome = play(limits, work, [])
    order = [outcome.first_ms[item.id] for _, item in work]
    assert order == sorted(order)


def test_a_single_request_takes_its_prefill_and_decode_iterations() -> None:
    """TTFT is the prefill iteration. Each further token takes one iteration with one more token of
    context.
    """
    machine, timings = Batcher(Linear(), Limits(4, 1000, 500)), Linear()
    machine.submit(Work(1, 100, 4))
    outcome = Outcome()
    outcome.take(machine.advance(1e6))
    first_ms = timings.prefill_ms(100)
    steps = [timings.decode_ms(1, context) for context in (100, 101, 102)]
    assert outcome.first_ms[1] == pytest.approx(first_ms)
    assert outcome.finished_ms[1] == pytest.approx(first_ms + sum(steps))


def test_a_prompt_is_computed_in_chunks_next_to_running_decodes() -> None:
    """With 12 tokens per iteration, 20 prompt tokens next to one decode take two iterations."""
    machine = Batcher(Linear(), Limits(4, 1000, 12))
    machine.submit(Work(1, 5, 50))
    started = Outcome()
    started.take(machine.advance(Linear().prefill_ms(5)))
    machine.submit(Work(2, 20, 1))
    outcome = Outcome()
    outcome.tokens[1] = 0
    while 2 not in outcome.first_ms:
        outcome.take(machine.advance(machine.next_event_ms()))
    assert outcome.tokens[1] in (2, 3)  # One token per chunk, and the token in progress


def test_when_kv_runs_out_the_latest_is_preempted_and_still_finishes() -> None:
    """Two requests together exceed the cache, but both get all of their tokens."""
    machine, outcome = Batcher(Linear(), Limits(2, 60, 50)), Outcome()
    machine.submit(Work(1, 20, 30))
    machine.submit(Work(2, 20, 30))
    outcome.take(machine.advance(1e6))
    assert machine.preemptions > 0
    assert outcome.tokens == {1: 30, 2: 30}
    assert outcome.finished_ms[1] < outcome.finished_ms[2]


def test_a_request_waits_for_leased_kv_until_its_release() -> None:
    """A lease occupies cache. Its release admits the next request."""
    machine = Batcher(Linear(), Limits(2, 100, 200, lease_ms=1e6))
    machine.submit(Work(1, 80, 1, Part.PREFILL))
    machine.advance(100.0)
    assert machine.held_leases == 1
    machine.submit(Work(2, 30, 2))
    assert machine.advance(500.0) == []
    assert machine.waiting == 1
    assert machine.release(1)
    assert not machine.release(1)
    outcome = Outcome()
    outcome.take(machine.advance(1000.0))
    assert outcome.first_ms[2] == pytest.approx(500.0 + Linear().prefill_ms(30))


def test_an_aborted_request_frees_its_kv_in_any_state() -> None:
    """Waiting, running and loading requests can be aborted, but not a finished one."""
    machine = Batcher(Linear(), Limits(2, 100, 50))
    for number, part in enumerate([Part.WHOLE, Part.DECODE, Part.WHOLE]):
        machine.submit(Work(number, 20, 10, part, 1e6 if part is Part.DECODE else 0.0))
    machine.advance(1.0)
    assert (machine.running, machine.loading, machine.waiting) == (1, 1, 1)
    assert all(machine.abort(number) for number in range(3))
    assert not machine.abort(1)
    assert machine.kv_usage == 0.0
    assert machine.advance(1e4) == []


def test_oversized_requests_and_decreasing_times_are_refused() -> None:
    """The error names the value, and the state stays unchanged."""
    machine = Batcher(Linear(), Limits(2, 100, 50))
    with pytest.raises(InvalidValue, match="KV cache"):
        machine.submit(Work(1, 90, 20))
    assert machine.waiting == 0
    machine.advance(10.0)
    with pytest.raises(InvalidValue, match="to_ms"):
        machine.advance(9.0)
