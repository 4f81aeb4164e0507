"""Capacity: the highest rate at which the declared percentile of requests meets both latency
limits.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Lengths, Phase, Slo
from autoscaler.performance import catalog
from autoscaler.performance.attainment import Engine, Run, build_engine
from autoscaler.performance.engine_limits import batched_tokens
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.performance.step_times import StepTimes, step_times
from autoscaler.performance.throughput import InstanceRate, instance_throughput
from autoscaler.planning.instances import evaluate_instance
from autoscaler.serving.batching import Batcher
from autoscaler.serving.engine_requests import Finished, FirstToken, Limits, Work
from streams.files.defaults_section import Defaults
from tests.unit.planning.planning_clusters import service

PROFILE = default_profile()
MINI = catalog.model("openai/gpt-oss-20b")
CODE = catalog.quantized(catalog.model("Qwen/Qwen3-32B"), "fp8")
L4, L40S = NodeSlice(catalog.gpu("L4"), 1), NodeSlice(catalog.gpu("L40S"), 1)
MINI_SLO, CODE_SLO = Slo(1000.0, 50.0), Slo(2000.0, 80.0)
CHAT = Lengths.expected(1155.0, 211.0)
SHORT = Lengths.expected(400.0, 120.0, cv=0.7)
LONG = Lengths.expected(2000.0, 211.0, cv=1.6)  # 95% of prompts have fewer than 7,300 tokens.


def capacity(
    model: ModelSpec, node: NodeSlice, slo: Slo, lengths: Lengths, percentile: float = 0.95,
    phase: Phase = Phase.AGGREGATED, arrival_cv: float = 1.0,
) -> InstanceRate:  # fmt: skip
    return instance_throughput(
        model, node, phase, slo, lengths, PROFILE, 0.8, percentile, arrival_cv
    )


def predicted_share(times: StepTimes, slo: Slo, lengths: Lengths, req_per_s: float) -> float:
    built = build_engine(times, Phase.AGGREGATED, lengths)
    return built.attained_share(built.run(req_per_s), slo)


def alone(model: ModelSpec, node: NodeSlice, slo: Slo, lengths: Lengths) -> float:
    """The share of requests that meet the SLO if each is alone on the instance."""
    return predicted_share(step_times(model, node, Phase.AGGREGATED, PROFILE), slo, lengths, 0.0)


def served_share(
    times: StepTimes, slo: Slo, lengths: Lengths, req_per_s: float, seed: int
) -> float:
    """The share of requests that meet the SLO in the Batcher.

    Requests are independent, with lognormal lengths.
    """
    random, count = np.random.default_rng(seed), 2500
    arrivals = np.cumsum(random.exponential(1e3 / req_per_s, count))
    sigma = np.sqrt(np.log(2.0))
    tokens = [
        np.maximum(1, mean * np.exp(sigma * random.standard_normal(count) - sigma**2 / 2))
        for mean in (lengths.input_tokens, lengths.output_tokens)
    ]
    kv_tokens = int(times.kv_capacity_tokens)
    batched = batched_tokens(Phase.AGGREGATED, times.max_batch)
    batcher = Batcher(times, Limits(times.max_batch, kv_tokens, batched))
    first, last = np.full(count, np.inf), np.full(count, np.inf)
    for i in range(count + 1):
        for event in batcher.advance(arrivals[i] if i < count else 1e12):
            if isinstance(event, FirstToken):
                first[event.id] = event.at_ms
            elif isinstance(event, Finished):
                last[event.id] = event.at_ms
        if i < count:
            batcher.submit(Work(i, int(tokens[0][i]), int(tokens[1][i])))
    tpot = (last - first) / np.maximum(tokens[1].astype(int) - 1, 1)
    kept = (first - arrivals + times.first_token_ms <= slo.ttft_ms) & (tpot <= slo.tpot_ms)
    return float(kept[300:-300].mean())


@pytest.mark.parametrize("percentile", [0.9, 0.95, 0.99])
@pytest.mark.parametrize(
    ("model", "node", "slo"), [(MINI, L4, Slo(4000.0, 80.0)), (MINI, L40S, MINI_SLO),
                               (CODE, L40S, CODE_SLO)],
)  # fmt: skip
def test_the_declared_percentile_meets_the_slo_at_the_planned_load(
    model: ModelSpec, node: NodeSlice, slo: Slo, percentile: float
) -> None:
    """The Batcher simulates the requests at the planned load."""
    found = capacity(model, node, slo, CHAT, percentile)
    times = step_times(model, node, Phase.AGGREGATED, PROFILE)
    planned = 0.8 * found.req_per_s
    told = predicted_share(times, slo, CHAT, planned)
    shares = [served_share(times, slo, CHAT, planned, seed) for seed in (1, 2, 3)]
    assert told >= percentile
    assert np.mean(shares) >= percentile - 0.02
    assert told <= np.mean(shares) + 0.02


@pytest.mark.parametrize("percentile", [0.9, 0.95, 0.99])
def test_the_percentile_changes_capacity_at_the_default_utilization(
    percentile: float,
) -> None:
    """This holds even for engines that meet the SLO nearly up to saturation."""
    llama = catalog.quantized(catalog.model("meta-llama/Llama-3.3-70B-Instruct"), "fp8")
    node, slo = NodeSlice(catalog.gpu("H100"), 4), Slo(2000.0, 60.0)
    default = Defaults().utilization

    def load(utilization: float) -> float:
        return (
            utilization
            * instance_throughput(
                llama, node, Phase.AGGREGATED, slo, SHORT, PROFILE, utilization, percentile
            ).req_per_s
        )

    planned = load(default)
    assert planned > 1.05 * load(0.8)
    times = step_times(llama, node, Phase.AGGREGATED, PROFILE)
    others = [build_engine(times, Phase.AGGREGATED, SHORT, seed=seed) for seed in (1, 2, 3)]
    shares = [other.attained_share(other.run(planned, 36_000), slo) for other in others]
    assert np.mean(shares) >= percentile - 0.01


def test_the_percentile_sets_the_capacity() -> None:
    rates = [capacity(MINI, L40S, MINI_SLO, CHAT, p).req_per_s for p in (0.5, 0.9, 0.95, 0.99)]
    assert rates == sorted(rates, reverse=True)
    assert rates[3] < 0.85 * rates[1]


def test_a_gpu_too_slow_for_long_prompts_has_no_capacity() -> None:
    """Even alone, one prompt in ten exceeds the TTFT limit on an L4, and one in
    sixty on an L40S.
    """
    small, large = capacity(MINI, L4, MINI_SLO, LONG), capacity(MINI, L40S, MINI_SLO, LONG)
    assert (small.req_per_s, small.bound_by) == (0.0, "ttft")
    assert 0.85 < alone(MINI, L4, MINI_SLO, LONG) < 0.95
    assert large.req_per_s > 0.5
    assert alone(MINI, L40S, MINI_SLO, LONG) > 0.97
    # With mean lengths alone the estimate would be above 0.
    assert capacity(MINI, L4, MINI_SLO, Lengths(2000.0, 211.0)).req_per_s > 0.0


def test_single_requests_are_evaluated_only_if_half_the_load_is_too_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[int] = []
    at = Engine.run_at_step

    def record_step(self: Engine, step: int) -> Run:
        looked.append(step)
        return at(self, step)

    monkeypatch.setattr(Engine, "run_at_step", record_step)
    assert capacity(MINI, L40S, MINI_SLO, CHAT).bound_by != "compute"
    assert 0 not in looked
    assert capacity(MINI, L4, MINI_SLO, LONG).req_per_s == 0.0
    assert 0 in looked


def test_an_unreachable_share_is_not_met_at_any_lower_rate() -> None:
    times = step_times(MINI, L4, Phase.AGGREGATED, PROFILE)
    assert (
        alone(MINI, L4, MINI_SLO, LONG)
        >= predicted_share(times, MINI_SLO, LONG, 0.05)
        > predicted_share(times, MINI_SLO, LONG, 0.8)
    )


def test_the_spread_of_lengths_lowers_capacity() -> None:
    mean = Lengths(1155.0, 211.0)
    assert (
        capacity(MINI, L40S, MINI_SLO, CHAT).req_per_s
        < capacity(MINI, L40S, MINI_SLO, mean).req_per_s
    )


def test_an_impossible_tpot_is_named_as_the_limit() -> None:
    found = capacity(CODE, L40S, Slo(2000.0, 20.0), CHAT)
    assert (found.req_per_s, found.bound_by) == (0.0, "tpot")
    assert alone(CODE, L40S, Slo(2000.0, 20.0), CHAT) == 0.0


def test_too_little_memory_is_named_as_the_limit() -> None:
    """Next to the weights, the L40S has room for 28,000 tokens of KV cache, which is three requests
    of 8,000 tokens.
    """
    found = capacity(CODE, L40S, Slo(6e4, 1e3), Lengths(8_000.0, 211.0))
    assert found.req_per_s > 0.0
    assert found.bound_by == "memory"
    huge = capacity(CODE, L40S, Slo(6e5, 1e3), Lengths(30_000.0, 211.0))
    assert (huge.req_per_s, huge.bound_by) == (0.0, "memory")


@pytest.mark.parametrize(("phase", "half"), [(Phase.PREFILL, "ttft_ms"), (Phase.DECODE, "tpot_ms")])
def test_prefill_and_decode_are_each_bound_by_their_own_limit(phase: Phase, half: str) -> None:
    found = capacity(MINI, L40S, MINI_SLO, CHAT, 0.95, phase)
    assert found.req_per_s > 0.0
    other = Slo(1000.0, 500.0) if phase is Phase.PREFILL else Slo(10_000.0, 50.0)
    assert capacity(MINI, L40S, other, CHAT, 0.95, phase).req_per_s == pytest.approx(
        found.req_per_s, rel=0.02
    )
    assert getattr(found, half) <= getattr(MINI_SLO, half)


@pytest.mark.parametrize("lengths", [Lengths(1155.0, 211.0), Lengths.expected(400.0, 120.0, 0.7)])
def test_the_percentile_holds_for_batches_of_a_hundred(lengths: Lengths) -> None:
    """A hundred requests in one batch miss the SLO together, so a short sample has too few
    independent batches.
    """
    llama, h100 = catalog.model("meta-llama/Llama-3.1-8B"), NodeSlice(catalog.gpu("H100"), 1)
    slo = Slo(500.0, 20.0)
    found = capacity(llama, h100, slo, lengths, 0.99, Phase.DECODE)
    assert found.batch > 80.0
    times = step_times(llama, h100, Phase.DECODE, PROFILE)
    other = build_engine(times, Phase.DECODE, lengths, seed=1)
    served = other.run(0.8 * found.req_per_s, 36_000)
    assert other.attained_share(served, slo) >= 0.995 - 0.02


def test_evenly_spaced_arrivals_raise_capacity_and_bursts_lower_it() -> None:
    smooth, poisson, bursts = (
        capacity(MINI, L4, Slo(4000.0, 80.0), CHAT, arrival_cv=cv).req_per_s
        for cv in (8**-0.5, 1.0, 3.0)
    )
    assert smooth > 1.05 * poisson
    assert bursts < 0.9 * poisson


def test_refused_arguments_are_named() -> None:
    with pytest.raises(InvalidValue, match="percentile"):
        capacity(MINI, L4, MINI_SLO, CHAT, percentile=1.5)
    with pytest.raises(InvalidValue, match="arrival_cv"):
        capacity(MINI, L4, MINI_SLO, CHAT, arrival_cv=float("nan"))


def test_the_declared_percentile_of_a_service_reaches_its_instances() -> None:
    """Two services differ only in their percentile."""
    rates = [
        evaluate_instance(
            service("mini", MINI.name, MINI_SLO, percentile=percentile),
            L40S, Phase.AGGREGATED, CHAT, PROFILE,
        ).req_per_s
        for percentile in (0.5, 0.95, 0.99)
    ]  # fmt: skip
    assert rates[0] > 1.05 * rates[1] > 1.05 * rates[2] > 0.0


def test_cached_prompt_tokens_cost_room_but_no_computation() -> None:
    """Capacity relative to no hits is between that of a shorter prompt and that of less prefill."""
    prompts = Lengths.expected(3000.0, 100.0)
    slo = Slo(2000.0, 80.0)
    rates = [
        capacity(MINI, L40S, slo, replace(prompts, prefix_hit=hit)).req_per_s
        for hit in (0.0, 0.3, 0.6, 0.9)
    ]
    assert rates == sorted(rates)
    assert rates[2] > 1.5 * rates[0]
    # A shorter prompt also has less KV to read and to keep.
    assert rates[2] < capacity(MINI, L40S, slo, Lengths.expected(1200.0, 100.0)).req_per_s
    # Decode instances get the KV of whole prompts.
    decode = [
        capacity(MINI, L40S, slo, replace(prompts, prefix_hit=hit), phase=Phase.DECODE).req_per_s
        for hit in (0.0, 0.9)
    ]
    assert decode[0] == decode[1]
