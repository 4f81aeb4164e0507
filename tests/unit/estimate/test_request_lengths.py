"""Planned lengths: longer requests count soon, shorter ones late, noise never."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from autoscaler.domain.workload import LEVELS, WEIGHTS, Lengths
from autoscaler.estimate.length_shift import MIN_REQUESTS
from autoscaler.estimate.model_demand import UNKNOWN_DEMAND, ModelDemand
from autoscaler.estimate.request_lengths import (
    EARLY_FACTOR,
    EARLY_S,
    SHORTER_MIN_REQUESTS,
    SHORTER_MIN_S,
    STEP,
    estimate_lengths,
)
from autoscaler.estimate.windows import Stats, WindowLengths
from topics.sketch import bucket_of

DECLARED = Lengths.expected(1000.0, 200.0)


def lengths_of(inputs: np.ndarray, outputs: np.ndarray) -> WindowLengths:
    def sketch(values: np.ndarray) -> dict[int, int]:
        return dict(Counter(bucket_of(float(value)) for value in values))

    return WindowLengths(
        sketch(inputs),
        sketch(outputs),
        float(inputs.mean()),
        float(outputs.mean()),
        len(inputs),
        len(outputs),
    )


def means(inputs: float, outputs: float, requests: int) -> WindowLengths:
    """Window lengths from a gateway that reports no sketches, only mean input and output tokens."""
    return WindowLengths({}, {}, inputs, outputs, requests, requests)


def demand_of(local: WindowLengths, long: WindowLengths, covered_s: int = 1800) -> ModelDemand:
    stats = Stats(covered_s, 0, long.arrivals, 0, 0, 0, 0, 1.0, None, None, None, None)
    return ModelDemand(long=stats, blocks=((10, 1),) * 180, local_lengths=local, long_lengths=long)


def test_fifty_three_shorter_requests_change_no_estimate() -> None:
    """The lengths of 53 shorter requests do not change the estimate."""
    window = means(667.0, 133.0, 53)
    assert estimate_lengths(DECLARED, DECLARED, demand_of(window, window, covered_s=60)) is DECLARED
    assert estimate_lengths(DECLARED, DECLARED, demand_of(window, window)) is DECLARED


@pytest.mark.parametrize(
    ("requests", "least", "most"),
    [(50, 1.25, 1.4), (120, 1.5, 1.65), (600, 1.75, 1.9)],
)
def test_the_estimate_follows_longer_requests_step_by_step(
    requests: int, least: float, most: float
) -> None:
    """Requests are twice as long. The estimate rises although the long window has mostly older
    requests.
    """
    before = means(1000.0, 200.0, 2000)
    found = estimate_lengths(DECLARED, DECLARED, demand_of(means(2000.0, 200.0, requests), before))
    assert least <= found.input_tokens / 1000.0 <= most
    assert found.output_tokens == 200.0 and found.outputs == DECLARED.outputs


def test_shorter_requests_need_many_requests_and_minutes() -> None:
    """Requests are two thirds as long. The estimate stays after few requests or little time. After
    many requests and minutes it is near the mean.
    """
    short = means(667.0, 133.0, 4000)
    few = means(667.0, 133.0, SHORTER_MIN_REQUESTS - 1)
    assert estimate_lengths(DECLARED, DECLARED, demand_of(short, few)) is DECLARED
    assert (
        estimate_lengths(DECLARED, DECLARED, demand_of(short, short, SHORTER_MIN_S - 1)) is DECLARED
    )
    found = estimate_lengths(DECLARED, DECLARED, demand_of(short, short, SHORTER_MIN_S))
    assert 667.0 <= found.input_tokens < 667.0 * 1.08
    assert found.inputs[-1] / found.input_tokens == pytest.approx(DECLARED.inputs[-1] / 1000.0)


def test_much_shorter_requests_lower_the_estimate_in_part_after_a_minute() -> None:
    """They are a quarter as long as declared."""
    quarter, few = means(250.0, 50.0, 400), means(250.0, 50.0, MIN_REQUESTS - 1)
    found = estimate_lengths(DECLARED, DECLARED, demand_of(quarter, quarter, EARLY_S))
    assert 250.0 * EARLY_FACTOR <= found.input_tokens < 250.0 * EARLY_FACTOR * 1.25
    assert (
        estimate_lengths(DECLARED, DECLARED, demand_of(quarter, quarter, EARLY_S - 1)) is DECLARED
    )
    assert estimate_lengths(DECLARED, DECLARED, demand_of(quarter, few, EARLY_S)) is DECLARED
    nearer = means(240.0, 48.0, 400)
    assert (
        estimate_lengths(found, DECLARED, demand_of(nearer, nearer, EARLY_S + 10)) is found
    )  # too small a change


def test_the_first_finished_answers_do_not_shorten_the_estimate() -> None:
    """A minute after traffic begins, long answers still run, so only short ones have finished."""
    ended = replace(means(250.0, 50.0, 400), completions=350)
    found = estimate_lengths(DECLARED, DECLARED, demand_of(ended, ended, EARLY_S))
    assert found.input_tokens < 500.0
    assert found.output_tokens == DECLARED.output_tokens


def test_idle_minutes_are_no_evidence_of_lengths() -> None:
    quarter = means(250.0, 50.0, 400)
    demand = demand_of(quarter, quarter)
    idle = replace(demand, blocks=((10, 0),) * 175 + ((10, 80),) * 5)
    assert estimate_lengths(DECLARED, DECLARED, idle) is DECLARED


def test_shorter_requests_of_the_past_do_not_lower_a_raised_estimate() -> None:
    """After a step up, the long window still has shorter requests. The estimate
    must not oscillate.
    """
    demand = demand_of(means(2000.0, 200.0, 300), means(1100.0, 200.0, 3000))
    raised = estimate_lengths(DECLARED, DECLARED, demand)
    assert raised.input_tokens > 1500.0
    assert estimate_lengths(raised, DECLARED, demand) is raised


def test_a_few_long_requests_hardly_change_the_declared_lengths() -> None:
    """Five requests of five times the declared length are too little evidence
    of another workload.
    """
    window = means(5000.0, 1000.0, 5)
    assert estimate_lengths(DECLARED, DECLARED, demand_of(window, window)) is DECLARED


def test_estimated_means_lie_on_a_grid_of_the_declared_ones() -> None:
    """The estimate is always declared x 1.03^k, so that caches get repeated keys."""
    for factor in (0.4, 0.71, 1.3, 2.2):
        window = means(1000.0 * factor, 200.0, 5000)
        found = estimate_lengths(DECLARED, DECLARED, demand_of(window, window))
        steps = math.log(found.input_tokens / 1000.0) / math.log(STEP)
        assert steps == pytest.approx(round(steps), abs=1e-6)
        assert abs(steps) > 1


def test_planned_lengths_stay_without_telemetry() -> None:
    """Without telemetry or requests, the result is the identical object."""
    other = Lengths(700.0, 50.0)
    assert estimate_lengths(other, DECLARED, UNKNOWN_DEMAND) is other
    assert estimate_lengths(other, DECLARED, demand_of(WindowLengths(), WindowLengths())) is other


@pytest.mark.parametrize("rate", [0.5, 2.0])
@pytest.mark.parametrize("seed", range(3))
def test_noise_moves_the_estimate_by_no_more_than_a_step(rate: float, seed: int) -> None:
    """Three hours of lognormal lengths with a standard deviation equal to their mean."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(1.0 / rate, int(rate * 10_800)))
    inputs = rng.lognormal(math.log(1000.0) - 0.3466, 0.8326, len(times)) + 1.0
    outputs = rng.lognormal(math.log(200.0) - 0.3466, 0.8326, len(times)) + 1.0
    current = DECLARED
    found = []
    for now in range(30, 10_800, 30):
        ends = [np.searchsorted(times, max(0, now - span)) for span in (120, 1800, 0)]
        end = np.searchsorted(times, now)
        if ends[0] == end:
            continue
        local = lengths_of(inputs[ends[0] : end], outputs[ends[0] : end])
        long = lengths_of(inputs[ends[1] : end], outputs[ends[1] : end])
        current = estimate_lengths(current, DECLARED, demand_of(local, long, min(now, 1800)))
        found.append((current.input_tokens, current.output_tokens))
    for values in zip(*found, strict=True):
        assert max(values) / min(values) <= STEP**2 * 1.001
        changes = sum(a != b for a, b in itertools.pairwise(values))
        assert changes <= 4


def test_a_heavier_tail_is_taken_from_the_sketch() -> None:
    """The declared length is fixed, but the measured p95 is 3.7 means. The points of the
    distribution follow the measurement.
    """
    rng = np.random.default_rng(5)
    sigma = 1.2
    inputs = rng.lognormal(math.log(2000.0) - sigma * sigma / 2, sigma, 6000) + 1.0
    outputs = np.full(6000, 200.0)
    window = lengths_of(inputs, outputs)
    fixed = Lengths(2000.0, 200.0)
    found = estimate_lengths(fixed, fixed, demand_of(window, window))
    assert found.outputs == ()
    for level, tokens in zip(LEVELS[:-1], found.inputs[:-1], strict=True):
        assert tokens == pytest.approx(float(np.quantile(inputs, level)), rel=0.12)
    assert estimate_lengths(found, fixed, demand_of(window, window)) is found


def test_a_measured_spread_that_equals_the_declared_one_changes_no_point() -> None:
    """Five hundred requests are drawn from the declared distribution. Their noise gives no new
    points.
    """
    rng = np.random.default_rng(7)
    for _ in range(20):
        inputs = rng.lognormal(math.log(1000.0) - 0.3466, 0.8326, 500) + 1.0
        window = lengths_of(inputs, inputs / 5.0)
        found = estimate_lengths(DECLARED, DECLARED, demand_of(replace(window), window))
        share = [p / found.input_tokens for p in found.inputs]
        assert share == pytest.approx([p / 1000.0 for p in DECLARED.inputs])


def cut_prompts(share_long: float, count: int, seed: int) -> np.ndarray:
    """Prompt lengths around 800 tokens. A share `share_long` is cut at the
    context limit of 4,000.
    """
    rng = np.random.default_rng(seed)
    return np.where(rng.random(count) < share_long, 4000.0, rng.lognormal(6.5, 0.5, count))


def test_a_larger_share_of_cut_prompts_does_not_raise_the_longest_prompt() -> None:
    """The share of prompts that are cut at 4,000 tokens rises from 6% to 20%. The mean rises and
    the longest prompts stay. If the mean falls back, the spread does too.
    """
    before = cut_prompts(0.06, 3000, 1)
    declared = Lengths.expected(float(before.mean()), 200.0)
    outputs = np.full(3000, 200.0)
    long = lengths_of(before, outputs)
    base = estimate_lengths(declared, declared, demand_of(long, long))
    more = cut_prompts(0.20, 250, 2)
    found = estimate_lengths(base, declared, demand_of(lengths_of(more, outputs[:250]), long))
    assert found.input_tokens > 1.1 * base.input_tokens
    assert found.inputs[-2] < 4000.0 * 1.03 and found.inputs[-1] < before.max() * 1.03
    shares = sum(w * x for w, x in zip(WEIGHTS, found.inputs, strict=True))
    assert shares == pytest.approx(found.input_tokens)
    assert (
        estimate_lengths(found, declared, demand_of(lengths_of(more, outputs[:250]), long)) is found
    )
    back = estimate_lengths(found, declared, demand_of(long, long))
    assert back.input_tokens < 1.1 * base.input_tokens
    for level, tokens in zip(LEVELS, back.inputs, strict=True):
        low, high = np.quantile(before, [max(0.0, level - 0.04), min(1.0, level + 0.04)])
        assert 0.97 * low <= tokens <= 1.03 * high


def test_the_longest_prompt_rises_if_all_prompts_are_longer() -> None:
    """Each prompt is 1.5 times as long. The long window still has only earlier, shorter prompts."""
    before = cut_prompts(0.06, 3000, 1)
    declared = Lengths.expected(float(before.mean()), 200.0)
    outputs = np.full(3000, 200.0)
    long = lengths_of(before, outputs)
    base = estimate_lengths(declared, declared, demand_of(long, long))
    local = lengths_of(1.5 * cut_prompts(0.06, 600, 3), outputs[:600])
    found = estimate_lengths(base, declared, demand_of(local, long))
    factor = found.input_tokens / base.input_tokens
    assert factor > 1.2
    assert found.inputs[-3] > 1.1 * base.inputs[-3]
