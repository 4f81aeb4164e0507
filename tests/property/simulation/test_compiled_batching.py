"""Compiled batching, with the Batcher as reference: same requests, same wake-ups, same times."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.workload import Phase
from autoscaler.performance import catalog, pass_kernel
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.performance.step_times import step_times
from autoscaler.performance.timing_grid import TimingGrid, timing_grid
from autoscaler.serving.batching import Batcher
from autoscaler.serving.engine_requests import Finished, FirstToken, Limits, Part, Work
from autoscaler.simulation.compiled_batching import CompiledBatcher

BATCHED = 512


@lru_cache(maxsize=1)
def grid() -> TimingGrid:
    node = NodeSlice(catalog.gpu("L4"), 1)
    spec = catalog.model("openai/gpt-oss-20b")
    times = step_times(spec, node, Phase.AGGREGATED, default_profile())
    return timing_grid(times, BATCHED)


class GridTimings:
    """Step times of the compiled kernel. Both implementations use them."""

    def prefill_ms(self, tokens: float, context: float = 0.0) -> float:
        return self.mixed_ms(tokens, context, 0.0, 0.0)

    def decode_ms(self, batch: float, context_tokens: float) -> float:
        return grid().decode_ms(int(batch), context_tokens)

    def mixed_ms(
        self, prompt_tokens: float, prompt_context: float, decodes: float, context_tokens: float
    ) -> float:
        found = grid()
        return float(
            pass_kernel.mixed_ms(
                found.scalars, found.dense, found.head, found.prompt_factor,
                int(prompt_tokens), prompt_context, int(decodes), context_tokens,
            )
        )  # fmt: skip


Machine = Batcher | CompiledBatcher


def lived(
    machine: Machine, works: list[tuple[float, Work]], wakes: list[float], held_ms: float
) -> list[tuple[float, int, str]]:
    """All outputs of `machine`.

    KV of a prefill is fetched after `held_ms`, or its lease expires if `held_ms` is negative.
    """
    out: list[tuple[float, int, str]] = []
    todo = sorted(works, key=lambda item: item[0])
    releases: list[tuple[float, int]] = []
    extra = sorted(wakes)
    now = 0.0
    for _ in range(100_000):
        coming = [machine.next_event_ms()]
        coming += [todo[0][0]] if todo else []
        coming += [extra[0]] if extra else []
        coming += [releases[0][0]] if releases else []
        after = min(coming)
        if after == np.inf:
            return sorted(out)
        now = max(after, np.nextafter(now, np.inf))
        for event in machine.advance(now):
            if isinstance(event, FirstToken | Finished):
                kind = "first" if isinstance(event, FirstToken) else "end"
                out.append((round(event.at_ms, 6), event.id, kind))
            if isinstance(event, Finished) and held_ms >= 0.0 and event.id % 2:
                releases.append((now + held_ms, event.id))
        releases.sort()
        freed = bool(releases) and releases[0][0] <= now
        while releases and releases[0][0] <= now:
            request = releases.pop(0)[1]
            machine.extend(request, now + 5.0)
            machine.release(request)
        while extra and extra[0] <= now:
            extra.pop(0)
        while todo and todo[0][0] <= now:
            machine.submit(todo.pop(0)[1])
        # A simulated engine continues when KV is freed, and when a submitted request can begin.
        if freed or isinstance(machine, Batcher) or machine.next_event_ms() <= now:
            machine.advance(now)
    raise AssertionError("it does not end")


works = st.lists(
    st.tuples(
        st.floats(0.0, 3000.0),
        st.integers(1, 900),
        st.integers(1, 60),
        st.sampled_from(list(Part)),
        st.floats(0.0, 50.0),
    ),
    min_size=1,
    max_size=90,
)


@given(
    works=works,
    wakes=st.lists(st.floats(0.0, 4000.0), max_size=10),
    seqs=st.integers(1, 20),
    kv=st.integers(1000, 6000),
    held_ms=st.floats(-1.0, 300.0),
)
@settings(max_examples=120, deadline=None)
def test_compiled_batching_equals_the_batcher(
    works: list[tuple[float, int, int, Part, float]],
    wakes: list[float],
    seqs: int,
    kv: int,
    held_ms: float,
) -> None:
    """Cases include chunked prompts, full KV caches, preemption, leases, KV in transfer, and
    wake-ups in between.
    """
    limits = Limits(seqs, kv, BATCHED, lease_ms=200.0)
    asked = [
        (at, Work(i, prompt, 1 if part is Part.PREFILL else output, part,
                  transfer if part is Part.DECODE else 0.0))
        for i, (at, prompt, output, part, transfer) in enumerate(works)
    ]  # fmt: skip
    slow = Batcher(GridTimings(), limits)
    fast = CompiledBatcher(grid(), limits)
    assert lived(fast, asked, wakes, held_ms) == lived(slow, asked, wakes, held_ms)
    assert (fast.preemptions, fast.held_leases) == (slow.preemptions, slow.held_leases)


def test_a_full_cache_causes_preemption_in_both() -> None:
    """Ten prompts of 100 tokens fill the KV cache of 1000 tokens, so the first decode iterations
    have no room.
    """
    limits = Limits(20, 1000, BATCHED)
    asked = [(0.0, Work(i, 100, 60)) for i in range(12)]
    slow, fast = Batcher(GridTimings(), limits), CompiledBatcher(grid(), limits)
    assert lived(fast, asked, [], 0.0) == lived(slow, asked, [], 0.0)
    assert fast.preemptions == slow.preemptions > 0
