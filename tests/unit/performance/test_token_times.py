"""The predicted times per token, and the capacity of slower engines that follows from them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.token_times import TokenTimes, pooled
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Lengths, Phase, Slo
from autoscaler.estimate.model_demand import UNKNOWN_DEMAND
from autoscaler.performance.profile_sources import cluster_profile
from autoscaler.planning.instances import evaluate_instance
from autoscaler.sizing.engine_slowdown import capacity_share
from autoscaler.state.model_view import ObservedServing
from streams.files.shoal_yaml import load_config
from streams.tools.backtest.backtest_demand import DEFAULT_CONFIG
from tests.unit.sizing.target_views import TEN, view

TIMES = TokenTimes(batch=40.0, tpot_ms=40.0, half_batch=15.0, half_tpot_ms=30.0)


def test_the_time_is_linear_in_the_number_of_requests() -> None:
    assert TIMES.tpot_ms_at(15.0) == 30.0
    assert TIMES.tpot_ms_at(27.5) == pytest.approx(35.0)
    assert TIMES.tpot_ms_at(65.0) == pytest.approx(50.0)
    assert TIMES.tpot_ms_at(1.0) == pytest.approx(24.4)


def test_the_number_of_requests_follows_from_the_time() -> None:
    assert TIMES.batch_at(35.0) == pytest.approx(27.5)
    assert TIMES.batch_at(1.0) == 0.0


def test_a_lower_planned_load_keeps_the_line() -> None:
    """By Little's law, the requests in decoding are the rate of tokens times the time per token."""
    assert TIMES.at_load(1.0) == pytest.approx(TIMES)
    half = TIMES.at_load(0.5)
    assert (half.batch, half.tpot_ms) == pytest.approx((15.0, 30.0))
    assert half.half_tpot_ms == pytest.approx(TIMES.tpot_ms_at(half.half_batch))
    assert half.half_batch / half.half_tpot_ms == pytest.approx(0.25 * 40.0 / 40.0)
    steep = TokenTimes(400.0, 40.0, 200.0, 10.0).at_load(0.01)
    assert steep.tpot_ms == 5.0 == steep.half_tpot_ms


def test_combos_share_requests_by_their_capacity() -> None:
    fast = TokenTimes(60.0, 20.0, 20.0, 10.0)
    both = pooled([(10.0, TIMES), (30.0, fast)])
    assert both == TokenTimes(100.0, 25.0, 35.0, 15.0)
    assert pooled([]) is None and pooled([(0.0, TIMES)]) is None


@pytest.mark.parametrize("numbers", [
    (10.0, 40.0, 15.0, 30.0), (40.0, 20.0, 15.0, 30.0), (40.0, float("nan"), 15.0, 30.0),
    (40.0, 40.0, -1.0, 30.0),
])  # fmt: skip
def test_impossible_times_are_refused(numbers: tuple[float, float, float, float]) -> None:
    with pytest.raises(InvalidValue, match="token times"):
        TokenTimes(*numbers)


@pytest.mark.parametrize("slowdown", [1.25, 1.5])
@pytest.mark.parametrize(("gpu", "gpus"), [("H100-SXM", 1), ("L40S", 1)])
def test_slow_engines_keep_the_share_that_a_new_search_finds(
    gpu: str, gpus: int, slowdown: float
) -> None:
    """If all steps take s times as long, the capacity is that of limits divided by s, over s."""
    cluster = load_config(DEFAULT_CONFIG, cautious=False).cluster
    service = cluster.service("mini")
    node = NodeSlice(next(p.gpu for p in cluster.pools if p.gpu.name == gpu), gpus)
    lengths, profile = Lengths.expected(1024.0, 256.0), cluster_profile(cluster)
    limits = service.slo
    shorter = Slo(limits.ttft_ms / slowdown, limits.tpot_ms / slowdown)
    usual = evaluate_instance(service, node, Phase.AGGREGATED, lengths, profile)
    tight = evaluate_instance(
        replace(service, slo=shorter), node, Phase.AGGREGATED, lengths, profile
    )
    combo = replace(
        TEN, req_per_s=usual.req_per_s, tpot_ms=usual.tpot_ms, token_times=usual.token_times
    )
    seen = view(UNKNOWN_DEMAND, service=service, serving=ObservedServing(ready=(combo,)))
    state = replace(seen.state, capacity=replace(seen.state.capacity, slowdown=slowdown))
    searched = tight.req_per_s / slowdown / usual.req_per_s
    assert capacity_share(replace(seen, state=state)) == pytest.approx(searched, rel=0.1)
