"""Capacity is monotonic in percentile and SLO, and smooth in lengths, for any sample."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.workload import Lengths, Phase, Slo
from autoscaler.performance import catalog
from autoscaler.performance.attainment import build_engine
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.performance.step_times import step_times
from autoscaler.performance.throughput import instance_throughput

PROFILE = default_profile()
MODELS = st.sampled_from(
    [
        catalog.model(name)
        for name in ("meta-llama/Llama-3.1-8B", "Qwen/Qwen3-32B", "openai/gpt-oss-20b")
    ]
)
NODES = st.builds(
    NodeSlice,
    st.sampled_from([catalog.gpu(name) for name in ("L4", "L40S", "A100", "H100")]),
    st.sampled_from((1, 2, 4)),
)
MEANS = st.tuples(st.floats(30.0, 10_000.0), st.floats(10.0, 1000.0), st.floats(0.2, 1.6))
SLOS = st.builds(Slo, st.floats(300.0, 20_000.0), st.floats(10.0, 200.0))
PERCENTILES = st.floats(0.5, 0.999)
PHASES = st.sampled_from(list(Phase))


def rate(
    model: ModelSpec, node: NodeSlice, phase: Phase, slo: Slo,
    means: tuple[float, float, float], percentile: float,
) -> float:  # fmt: skip
    lengths = Lengths.expected(*means)
    return instance_throughput(model, node, phase, slo, lengths, PROFILE, 0.8, percentile).req_per_s


def saturation(
    model: ModelSpec, node: NodeSlice, phase: Phase, means: tuple[float, float, float]
) -> float:
    times = step_times(model, node, phase, PROFILE)
    if times.kv_capacity_tokens < 1.0:
        return 0.0
    return build_engine(times, phase, Lengths.expected(*means)).saturation()[0]


@settings(max_examples=60, deadline=None)
@given(MODELS, NODES, PHASES, SLOS, MEANS, PERCENTILES, PERCENTILES)
def test_a_higher_percentile_never_has_a_higher_capacity(
    model, node, phase, slo, means, one, other
) -> None:
    low, high = sorted((one, other))
    assert rate(model, node, phase, slo, means, high) <= rate(model, node, phase, slo, means, low)


@settings(max_examples=60, deadline=None)
@given(
    MODELS, NODES, PHASES, SLOS, MEANS, PERCENTILES, st.floats(1.0, 3.0), st.floats(1.0, 3.0)
)  # fmt: skip
def test_a_tighter_slo_never_has_a_higher_capacity(
    model, node, phase, slo, means, percentile, ttft, tpot
) -> None:
    loose = Slo(slo.ttft_ms * ttft, slo.tpot_ms * tpot)
    tight = rate(model, node, phase, slo, means, percentile)
    assert tight <= rate(model, node, phase, loose, means, percentile)


@settings(max_examples=60, deadline=None)
@given(MODELS, NODES, PHASES, SLOS, MEANS, st.floats(0.5, 0.95), st.floats(1.0, 2.0))
def test_longer_prompts_never_have_a_higher_capacity(
    model, node, phase, slo, means, percentile, longer
) -> None:
    """This holds within the random error of the sample. Longer answers may have a higher capacity,
    because a pause has less effect on their mean TPOT.
    """
    more = (means[0] * longer, *means[1:])
    had = rate(model, node, phase, slo, means, percentile)
    slack = 0.01 * saturation(model, node, phase, means)
    assert rate(model, node, phase, slo, more, percentile) <= 1.05 * had + slack


@settings(max_examples=60, deadline=None)
@given(
    MODELS, NODES, PHASES, SLOS, MEANS, st.floats(0.5, 0.95), st.sampled_from((0, 1)),
)  # fmt: skip
def test_capacity_is_smooth_in_the_lengths(
    model, node, phase, slo, means, percentile, which
) -> None:
    """Lengths that are 1% longer cause no jump in capacity, even at the border of two length
    buckets.
    """
    more = list(means)
    more[which] *= 1.01
    had = rate(model, node, phase, slo, means, percentile)
    has = rate(model, node, phase, slo, (more[0], more[1], more[2]), percentile)
    assert abs(has - had) <= 0.07 * saturation(model, node, phase, means)
