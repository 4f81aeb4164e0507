"""Several batches at once: each request stays in its lane until it ends."""

from __future__ import annotations

from autoscaler.serving.batching import Batcher
from autoscaler.serving.engine_requests import Finished, Limits, Part, Work
from autoscaler.serving.pipeline_stages import PipelinedEngine


class Steady:
    """Step times in which every iteration takes ten milliseconds."""

    def prefill_ms(self, tokens: float, context: float = 0.0) -> float:
        return 10.0

    def decode_ms(self, batch: float, context_tokens: float) -> float:
        return 10.0

    def mixed_ms(self, prompt: float, context: float, decodes: float, seen: float) -> float:
        return 10.0


def lanes(count: int) -> PipelinedEngine:
    return PipelinedEngine([Batcher(Steady(), Limits(1, 1000, 100)) for _ in range(count)])


def test_two_lanes_serve_two_requests_at_a_time() -> None:
    """Each lane has one slot. Four requests of ten tokens take 200 ms in two
    lanes, 400 ms in one.
    """
    for count, ms in ((1, 400.0), (2, 200.0)):
        machine = lanes(count)
        for number in range(4):
            machine.submit(Work(number, 10, 10))
        assert machine.running + machine.waiting == 4
        done = [e for e in machine.advance(1000.0) if isinstance(e, Finished)]
        assert max(event.at_ms for event in done) == ms
        assert len(done) == 4
        assert machine.running == machine.waiting == 0


def test_an_aborted_request_leaves_its_lane() -> None:
    """The next request takes its slot, and its id is no longer known."""
    machine = lanes(2)
    for number in (1, 2):
        machine.submit(Work(number, 10, 10))
    machine.advance(20.0)
    assert machine.abort(1)
    assert not machine.abort(1)
    machine.submit(Work(3, 10, 10))
    machine.advance(30.0)
    assert machine.running == 2


def test_kv_is_kept_and_freed_in_its_own_lane() -> None:
    """The KV cache of a finished prefill stays until a decode instance fetches it or its lease
    ends."""
    machine = lanes(2)
    for number in (1, 2):
        machine.submit(Work(number, 10, 1, Part.PREFILL))
    machine.advance(20.0)
    assert machine.held_leases == 2
    assert machine.extend(2, 90_000.0)
    assert machine.release(1)
    assert not machine.release(1)
    machine.advance(60_000.0)
    assert machine.held_leases == 1
    machine.advance(100_000.0)
    assert machine.held_leases == 0
    assert machine.kv_usage == 0.0
