"""The compiled engine, compared with the Batcher as its reference."""

from __future__ import annotations

import heapq
import itertools

import numpy as np
import numpy.typing as npt
import pytest

from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.workload import Phase
from autoscaler.performance import catalog, engine_kernel, pass_kernel
from autoscaler.performance.engine_limits import batched_tokens
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.performance.step_times import StepTimes, step_times
from autoscaler.performance.timing_grid import timing_grid
from autoscaler.serving.batching import Batcher
from autoscaler.serving.engine_requests import Event, Finished, FirstToken, Limits, Part, Work

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

PARTS = {Phase.AGGREGATED: Part.WHOLE, Phase.PREFILL: Part.PREFILL, Phase.DECODE: Part.DECODE}
KINDS = {
    Phase.AGGREGATED: engine_kernel.WHOLE,
    Phase.PREFILL: engine_kernel.PREFILL,
    Phase.DECODE: engine_kernel.DECODE,
}
# model, GPU, phase, req/s, available share of the KV cache
CASES = [
    ("openai/gpt-oss-20b", "L4", Phase.AGGREGATED, 1.5, 1.0),
    ("openai/gpt-oss-20b", "L4", Phase.AGGREGATED, 2.5, 0.2),
    ("meta-llama/Llama-3.1-8B", "A100", Phase.AGGREGATED, 6.0, 0.12),
    ("meta-llama/Llama-3.1-8B", "H100", Phase.PREFILL, 25.0, 1.0),
    ("meta-llama/Llama-3.1-8B", "H100", Phase.PREFILL, 25.0, 0.05),
    ("meta-llama/Llama-3.1-8B", "H100", Phase.DECODE, 20.0, 0.15),
    ("meta-llama/Llama-3.1-8B", "H100", Phase.DECODE, 20.0, 1.0),
]


class _Recorder:
    def __init__(self, count: int) -> None:
        self.first = np.full(count, np.inf)
        self.last = np.full(count, np.inf)

    def note(self, events: list[Event]) -> list[Finished]:
        for event in events:
            if isinstance(event, FirstToken):
                self.first[event.id] = event.at_ms
            elif isinstance(event, Finished):
                self.last[event.id] = event.at_ms
        return [event for event in events if isinstance(event, Finished)]


def by_batcher(
    times: StepTimes, phase: Phase, limits: Limits, arrivals: Floats, inputs: Ints, outputs: Ints,
    hold_ms: Floats, hits: Ints | None = None,
) -> tuple[Floats, Floats, int]:  # fmt: skip
    """First and last token time of each request, and the number of preemptions, from the Batcher.

    KV leases end after `hold_ms`. hits: blocks at the beginning of each prompt that all prompts
    share, and that are in the prefix cache.
    """
    batcher, seen = Batcher(times, limits), _Recorder(len(arrivals))
    if hits is not None:
        most = int(hits.max())
        batcher.submit(Work(len(arrivals), most * limits.block_tokens, 1, blocks=range(most)))
    releases: list[tuple[float, int]] = []
    todo = [(float(at), i) for i, at in enumerate(arrivals)]
    while todo or releases or batcher.next_event_ms() < 1e12:
        coming = min(
            todo[0][0] if todo else np.inf,
            releases[0][0] if releases else np.inf,
            batcher.next_event_ms() if not todo or phase is Phase.PREFILL else np.inf,
        )
        events = [one for one in batcher.advance(coming) if one.id < len(arrivals)]
        for event in seen.note(events):
            if phase is Phase.PREFILL:
                heapq.heappush(releases, (event.at_ms + hold_ms[event.id], event.id))
        while releases and releases[0][0] <= coming:
            batcher.release(heapq.heappop(releases)[1])
        while todo and todo[0][0] <= coming:
            i = todo.pop(0)[1]
            if inputs[i] + outputs[i] > limits.kv_tokens:
                continue
            transfer = float(hold_ms[i]) if phase is Phase.DECODE else 0.0
            shared = range(int(hits[i])) if hits is not None else ()
            batcher.submit(Work(i, int(inputs[i]), int(outputs[i]), PARTS[phase], transfer, shared))
    return seen.first, seen.last, batcher.preemptions


@pytest.mark.parametrize(("name", "gpu", "phase", "rate", "memory"), CASES)
def test_the_compiled_engine_serves_as_the_batcher_does(
    name: str, gpu: str, phase: Phase, rate: float, memory: float
) -> None:
    """Both skip iterations at different points. So single requests may differ, but the
    distributions agree.
    """
    times = step_times(
        catalog.model(name), NodeSlice(catalog.gpu(gpu), 1), phase, default_profile()
    )
    random, count = np.random.default_rng(3), 1200
    arrivals = np.cumsum(random.exponential(1e3 / rate, count))
    inputs = np.maximum(1, random.lognormal(6.7, 0.9, count)).astype(np.int64)
    outputs = np.maximum(1, random.lognormal(5.0, 0.9, count)).astype(np.int64)
    if phase is Phase.PREFILL:
        outputs[:] = 1
    hold_ms = 5.0 + 0.02 * inputs
    kv_tokens = int(times.kv_capacity_tokens * memory)
    limits = Limits(
        times.max_batch, kv_tokens, batched_tokens(phase, times.max_batch), lease_ms=1e9
    )
    first, last, preempted = by_batcher(times, phase, limits, arrivals, inputs, outputs, hold_ms)
    grid = timing_grid(times, limits.batched_tokens)
    quick_first, quick_last, stats = np.empty(count), np.empty(count), np.zeros(5)
    engine_kernel.serve(
        KINDS[phase], arrivals, inputs, outputs, hold_ms, np.zeros_like(inputs), times.max_batch,
        kv_tokens,
        limits.batched_tokens, grid.scalars, grid.dense, grid.head, grid.prompt_factor,
        grid.factors, quick_first, quick_last, stats,
    )  # fmt: skip
    served = np.isfinite(last)
    assert (np.isfinite(quick_last) == served).all()
    assert served.sum() > 0.9 * count
    if memory < 0.2 and phase is not Phase.PREFILL:
        assert preempted > 20
    assert stats[3] == pytest.approx(preempted, rel=0.05, abs=3)
    for quick, slow in (
        ((quick_first - arrivals)[served], (first - arrivals)[served]),
        (quick_last[served] - quick_first[served], last[served] - first[served]),
    ):
        levels = (0.1, 0.5, 0.9, 0.95, 0.99)
        assert np.quantile(quick, levels) == pytest.approx(np.quantile(slow, levels), rel=0.04)
        assert quick.mean() == pytest.approx(slow.mean(), rel=0.01)
    early = slice(0, 40)
    assert quick_last[early] == pytest.approx(last[early], rel=2e-3)


@pytest.mark.parametrize("phase", [Phase.AGGREGATED, Phase.PREFILL])
def test_both_skip_the_cached_part_of_prompts(phase: Phase) -> None:
    model, node = catalog.model("meta-llama/Llama-3.1-8B"), NodeSlice(catalog.gpu("H100"), 1)
    times = step_times(model, node, phase, default_profile())
    random, count, block = np.random.default_rng(4), 600, 16
    arrivals = 60_000.0 + np.cumsum(random.exponential(1e3 / 30.0, count))
    inputs = np.maximum(20, random.lognormal(7.5, 0.6, count)).astype(np.int64)
    outputs = np.maximum(1, random.lognormal(4.0, 0.6, count)).astype(np.int64)
    if phase is Phase.PREFILL:
        outputs[:] = 1
    hits = np.floor(0.7 * inputs / block).astype(np.int64)
    batched = batched_tokens(phase, times.max_batch)
    limits = Limits(times.max_batch, int(times.kv_capacity_tokens), batched, 1e9, block)
    hold_ms = np.full(count, 5.0)
    first, last, _ = by_batcher(times, phase, limits, arrivals, inputs, outputs, hold_ms, hits)
    grid = timing_grid(times, limits.batched_tokens)
    quick_first, quick_last, stats = np.empty(count), np.empty(count), np.zeros(5)
    engine_kernel.serve(
        KINDS[phase], arrivals, inputs, outputs, hold_ms, block * hits, times.max_batch,
        limits.kv_tokens, limits.batched_tokens, grid.scalars, grid.dense, grid.head,
        grid.prompt_factor, grid.factors, quick_first, quick_last, stats,
    )  # fmt: skip
    for quick, slow in ((quick_first - arrivals, first - arrivals), (quick_last, last)):
        assert np.quantile(quick, (0.1, 0.5, 0.95)) == pytest.approx(
            np.quantile(slow, (0.1, 0.5, 0.95)), rel=0.04
        )


def test_the_grid_agrees_with_the_step_times() -> None:
    for name, gpu, gpus in (
        ("openai/gpt-oss-20b", "L4", 1),  # with experts and sliding windows
        ("meta-llama/Llama-3.3-70B-Instruct", "H100", 4),
        ("meta-llama/Llama-2-70b", "A100", 4),
    ):
        node = NodeSlice(catalog.gpu(gpu), gpus)
        times = step_times(catalog.model(name), node, Phase.AGGREGATED, default_profile())
        grid = timing_grid(times, 2048)
        for batch in (1, 7, 100, 256):
            for context in (17.0, 900.0, 20_000.0):
                wanted = times.decode_ms(batch, context)
                assert grid.decode_ms(batch, context) == pytest.approx(wanted, rel=0.01)
                for tokens, cached in itertools.product((1, 300, 1700), (0.0, 640.0)):
                    mixed = pass_kernel.mixed_ms(
                        grid.scalars, grid.dense, grid.head, grid.prompt_factor,
                        tokens, cached, batch, context,
                    )  # fmt: skip
                    wanted = times.mixed_ms(tokens, cached, batch, context)
                    assert mixed == pytest.approx(wanted, rel=0.01)
        for tokens in (1, 300, 2048):  # exact, because no powers are involved
            alone = pass_kernel.attention_ms(grid.scalars, tokens, 1.0, 0.0)
            assert grid.dense[1, tokens] == alone


def test_the_polynomial_of_one_token_attention_agrees_with_the_powers() -> None:
    """They agree to one part in a billion, with and without sliding windows."""
    fitted = 0
    for name, gpu, gpus in (("openai/gpt-oss-20b", "L4", 1), ("meta-llama/Llama-2-70b", "A100", 4)):
        node = NodeSlice(catalog.gpu(gpu), gpus)
        times = step_times(catalog.model(name), node, Phase.AGGREGATED, default_profile())
        scalars = timing_grid(times, 2048).scalars
        powers = scalars.copy()
        powers[pass_kernel.FITTED] = 0.0
        fitted += int(scalars[pass_kernel.FITTED])
        for context in (0.0, 3.5, 127.0, 128.5, 900.0, 90_000.0):
            wanted = pass_kernel.attention_ms(powers, 1.0, 7.0, context)
            found = pass_kernel.attention_ms(scalars, 1.0, 7.0, context)
            assert found == pytest.approx(wanted, rel=1e-9)
    assert fitted == 2
