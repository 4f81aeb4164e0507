"""A shift from long prompts to long answers: windows from before it describe other requests."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from autoscaler.domain.workload import Lengths
from autoscaler.estimate.length_shift import lengths_since_shift
from autoscaler.estimate.model_demand import SHIFT_SPANS_S, ModelDemand
from autoscaler.estimate.request_lengths import estimate_lengths
from autoscaler.estimate.window_stats import Stats, TokenSums, WindowLengths

BEFORE, AFTER = (6000.0, 150.0), (2000.0, 400.0)
DECLARED = Lengths.expected(*BEFORE, 0.7)
RATE = 14.0


def token_sums(seconds: dict[tuple[float, float], float], rate: float = RATE) -> TokenSums:
    """Token sums of requests at `rate`. seconds: duration in s by (input tokens, output tokens)."""
    count = {kind: round(rate * span_s) for kind, span_s in seconds.items()}
    total = sum(count.values())
    inputs = round(sum(kind[0] * n for kind, n in count.items()))
    return TokenSums(total, inputs, total, round(sum(kind[1] * n for kind, n in count.items())))


def means(tokens: TokenSums) -> WindowLengths:
    return WindowLengths(
        {}, {}, tokens.input_tokens / tokens.arrivals, tokens.output_tokens / tokens.completions,
        tokens.arrivals, tokens.completions,
    )  # fmt: skip


def demand_after_shift(
    since_s: float, after: tuple[float, float] = AFTER, rate: float = RATE
) -> ModelDemand:
    """The demand `since_s` seconds after a shift from the mean lengths BEFORE to `after`."""

    def window(span_s: float) -> TokenSums:
        new_s = min(since_s, span_s)
        return token_sums({BEFORE: span_s - new_s, after: new_s}, rate)

    long = means(window(1800.0))
    stats = Stats(1800, 0, long.arrivals, 0, 0, 0, 0, 1.0, None, None, None, None)
    return ModelDemand(
        long=stats,
        blocks=((10, 1),) * 180,
        local_lengths=means(window(120.0)),
        long_lengths=long,
        recent_tokens=tuple(window(float(span_s)) for span_s in SHIFT_SPANS_S),
    )


@pytest.mark.parametrize("since_s", [20.0, 50.0, 90.0, 130.0, 600.0])
def test_both_lengths_are_estimated_from_the_time_since_the_shift(since_s: float) -> None:
    """Prompts are now shorter and answers longer. Means over both sides of the shift describe
    neither.
    """
    current = DECLARED
    for at_s in np.arange(10.0, since_s + 1.0, 10.0):
        current = estimate_lengths(
            current, DECLARED, demand_after_shift(float(at_s)), capacity_exhausted=True
        )
    assert AFTER[0] <= current.input_tokens < 1.35 * AFTER[0]
    assert 0.8 * AFTER[1] < current.output_tokens <= AFTER[1]


def test_shorter_requests_count_late_while_capacity_can_be_added() -> None:
    """Longer means count at once, because older requests do not delay them."""
    current = DECLARED
    for at_s in range(10, 61, 10):
        current = estimate_lengths(current, DECLARED, demand_after_shift(float(at_s)))
    assert current.input_tokens == DECLARED.input_tokens
    assert 0.8 * AFTER[1] < current.output_tokens <= AFTER[1]


def test_an_estimate_made_during_a_shortfall_stays_after_it() -> None:
    short = estimate_lengths(DECLARED, DECLARED, demand_after_shift(60.0), capacity_exhausted=True)
    assert short.input_tokens < 0.5 * DECLARED.input_tokens
    assert (
        estimate_lengths(short, DECLARED, demand_after_shift(70.0)).input_tokens
        == short.input_tokens
    )


def test_a_shift_back_is_estimated_as_quickly() -> None:
    raised = Lengths.expected(*AFTER, 0.7)
    back = demand_after_shift(20.0, after=BEFORE)
    turned = ModelDemand(
        long=back.long,
        blocks=back.blocks,
        long_lengths=means(token_sums({AFTER: 1780.0, BEFORE: 20.0})),
        local_lengths=means(token_sums({AFTER: 100.0, BEFORE: 20.0})),
        recent_tokens=tuple(
            token_sums({AFTER: span_s - 20.0, BEFORE: 20.0}) for span_s in SHIFT_SPANS_S
        ),
    )
    found = estimate_lengths(raised, raised, turned, capacity_exhausted=True)
    assert found.input_tokens > 0.8 * BEFORE[0]
    assert found.output_tokens < 1.25 * BEFORE[1]


@pytest.mark.parametrize("after", [(6000.0, 400.0), (2000.0, 150.0), (9000.0, 225.0)])
def test_a_change_of_one_length_or_of_both_in_one_direction_is_no_shift(
    after: tuple[float, float],
) -> None:
    """The usual rules apply."""
    for since_s in (20.0, 60.0, 130.0):
        assert lengths_since_shift(demand_after_shift(since_s, after), 0.7, 0.7) is None


def test_drift_is_no_shift_and_clustered_requests_are_less_evidence() -> None:
    """A significant difference alone is no shift: in a recorded trace, some minutes are always a
    fifth longer than others.
    """
    assert lengths_since_shift(demand_after_shift(600.0, (5000.0, 180.0)), 0.7, 0.7) is None
    clumps = tuple((10, 1400 if at % 6 == 0 else 1) for at in range(180))
    turned = demand_after_shift(20.0, (4000.0, 215.0))
    assert lengths_since_shift(turned, 0.7, 0.7) is not None
    assert lengths_since_shift(replace(turned, blocks=clumps), 0.7, 0.7) is None


def test_a_few_requests_are_no_shift() -> None:
    assert lengths_since_shift(demand_after_shift(60.0, rate=0.8), 0.7, 0.7) is None
    assert lengths_since_shift(demand_after_shift(60.0), 0.7, 0.7) is not None
    assert lengths_since_shift(ModelDemand(), 0.7, 0.7) is None


@pytest.mark.parametrize("seed", range(3))
def test_noise_is_no_shift(seed: int) -> None:
    """Two hours of lognormal lengths with constant parameters."""
    random = np.random.default_rng(seed)
    sigma = math.sqrt(math.log(1.49))
    counts = random.poisson(RATE, 7200)
    sums = np.zeros((7201, 3), int)
    for second, n in enumerate(counts):
        drawn = [random.lognormal(math.log(m) - sigma**2 / 2, sigma, n).sum() for m in BEFORE]
        sums[second + 1] = sums[second] + (n, *map(round, drawn))

    def window(now: int, span_s: int) -> TokenSums:
        n, inputs, outputs = map(int, sums[now] - sums[max(0, now - span_s)])
        return TokenSums(n, inputs, n, outputs)

    for now in range(300, 7200, 10):
        demand = ModelDemand(
            local_lengths=means(window(now, 120)),
            long_lengths=means(window(now, 1800)),
            recent_tokens=tuple(window(now, span_s) for span_s in SHIFT_SPANS_S),
        )
        assert lengths_since_shift(demand, 0.7, 0.7) is None
