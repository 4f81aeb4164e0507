"""Tokens that take longer than predicted lower the planned capacity before requests miss SLOs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.domain.cluster import Service
from autoscaler.domain.token_times import TokenTimes
from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.estimate.windows import Stats
from autoscaler.sizing.capacity_derating import LEAST, update_derating
from autoscaler.sizing.engine_slowdown import capacity_share
from autoscaler.state.model_state import ModelState
from autoscaler.state.model_view import ModelView, ObservedServing
from tests.unit.sizing.target_views import T0, TEN, stats, view
from topics.reason_codes import ReasonCode

TIMES = TokenTimes(batch=40.0, tpot_ms=40.0, half_batch=15.0, half_tpot_ms=30.0)
"""A time per token of 24 ms for a single request, and 0.4 ms for each further one."""
COMBO = replace(TEN, req_per_s=10.0, tpot_ms=60.0, token_times=TIMES)
TOKENS = 100.0
"""Mean answer."""


def served(tpot_ms: float, req_per_s: float) -> ModelView:
    """A model with one ready combo, `req_per_s` in the local window and a loose limit."""
    seen = replace(
        stats(round(120 * req_per_s), 120), mean_output_tokens=TOKENS, tpot_p50_ms=tpot_ms
    )
    demand = ModelDemand(local=seen, long=seen, reported_ms=T0)
    found = view(demand, serving=ObservedServing(ready=(COMBO,), nothing_starting=True))
    return replace(found, service=with_limit(found.service, 100.0))


def with_limit(service: Service, tpot_ms: float) -> Service:
    return replace(service, slo=replace(service.slo, tpot_ms=tpot_ms))


def at_slowdown(slowdown: float, req_per_s: float = 6.0) -> ModelView:
    """Engines that take `slowdown` times as long as TIMES: the requests in decoding are the rate of
    tokens times the time per token."""
    each_s = TOKENS * req_per_s / 1000.0
    alone_ms, per_ms = 24.0, 0.4
    return served(slowdown * alone_ms / (1.0 - slowdown * per_ms * each_s), req_per_s)


def later(seen: ModelView, *after_s: float) -> ModelState:
    """The state after one update at each of `after_s`, with the same statistics."""
    state = seen.state
    for each_s in after_s:
        state = update_derating(replace(seen, state=state, now_ms=T0 + round(1000 * each_s)))
    return state


@pytest.mark.parametrize("slowdown", [1.25, 1.4])
def test_lasting_slow_tokens_lower_the_capacity(slowdown: float) -> None:
    seen = at_slowdown(slowdown, 5.0)
    assert later(seen, 0.0, 119.0).capacity.derate == 1.0
    found = later(seen, 0.0, 119.0, 120.0)
    assert found.capacity.slowdown == pytest.approx(slowdown)
    assert found.capacity.derate == pytest.approx(1.0 / slowdown)
    assert found.target.why is not None and found.target.why.code is ReasonCode.SLOW_ENGINES


@pytest.mark.parametrize(("slowdown", "req_per_s"), [(0.8, 8.0), (1.0, 8.0), (1.15, 6.0)])
def test_load_and_small_differences_are_no_slowdown(slowdown: float, req_per_s: float) -> None:
    assert later(at_slowdown(slowdown, req_per_s), 0.0, 130.0).capacity.derate == 1.0


@pytest.mark.parametrize(("slowdown", "noted"), [(0.8, 0.8), (0.88, 1.0), (1.15, 1.0)])
def test_only_a_sixth_less_time_per_token_is_fast(slowdown: float, noted: float) -> None:
    seen = at_slowdown(slowdown, 7.0)
    assert later(seen, 0.0, 120.0).capacity.slowdown == pytest.approx(noted)


def test_requests_that_have_not_ended_prove_no_capacity() -> None:
    """The queue grows, and the few requests that ended were in time."""
    seen = at_slowdown(1.0, 8.0)
    known = replace(seen.state.capacity, derate=0.7, derated_ms=T0 - 600_000)
    seen = replace(seen, state=replace(seen.state, capacity=known))
    assert isinstance(seen.demand.local, Stats)
    few = replace(seen.demand.local, attained=200, completions=200)
    demand = replace(seen.demand, local=few, long=few)
    assert update_derating(replace(seen, demand=demand)).capacity.derate == 0.7
    assert update_derating(seen).capacity.derate > 0.7


def test_less_than_half_of_the_planned_load_proves_nothing() -> None:
    assert later(at_slowdown(1.5, 1.5), 0.0, 130.0).capacity.slow_since_ms == 0


def test_an_interruption_starts_the_wait_again() -> None:
    slow, fast = at_slowdown(1.4, 5.0), at_slowdown(1.0, 5.0)
    state = later(slow, 0.0, 100.0)
    state = later(replace(fast, state=state), 110.0)
    assert later(replace(slow, state=state), 120.0, 230.0).capacity.derate == 1.0


@pytest.mark.parametrize("serving", [
    ObservedServing(ready=(COMBO,), nothing_starting=False),
    ObservedServing(ready=(COMBO, replace(COMBO, token_times=None)), nothing_starting=True),
    ObservedServing(ready=(replace(COMBO, meets_slo=False),), nothing_starting=True),
    ObservedServing(nothing_starting=True),
])  # fmt: skip
def test_starts_and_unknown_predictions_prove_nothing(serving: ObservedServing) -> None:
    seen = replace(at_slowdown(1.5), serving=serving)
    assert later(seen, 0.0, 130.0).capacity.derate == 1.0


def test_instances_that_just_became_ready_prove_nothing() -> None:
    seen = at_slowdown(1.5)
    capacity = replace(seen.state.capacity, settled_ms=T0 - 60_000)
    seen = replace(seen, state=replace(seen.state, capacity=capacity))
    assert later(seen, 0.0, 59.0).capacity.slow_since_ms == 0
    assert later(seen, 60.0).capacity.slow_since_ms == T0 + 60_000


def test_a_tight_limit_leaves_fewer_requests_in_decoding() -> None:
    """The planned tokens take 60 ms at the percentile, 40 ms in the median. With a limit of 60 ms
    and tokens that take 1.25 times as long, the median may be 40 / 1.25 = 32 ms: 20 requests."""
    seen = at_slowdown(1.25)
    tight = with_limit(seen.service, 60.0)
    capacity = replace(seen.state.capacity, slowdown=1.25)
    state = replace(seen.state, capacity=capacity)
    assert capacity_share(replace(seen, service=tight, state=state)) == pytest.approx(20.0 / 40.0)
    assert capacity_share(replace(seen, state=state)) == pytest.approx(1.0 / 1.25)


def test_derating_has_a_lower_bound() -> None:
    assert later(at_slowdown(3.0, 2.0), 0.0, 130.0).capacity.derate == LEAST


def test_capacity_returns_when_tokens_are_fast_again() -> None:
    """While engines are slow, attained SLOs do not raise the capacity above the measured share."""
    slow, fast = at_slowdown(1.4, 5.0), at_slowdown(1.0, 5.0)
    state = later(slow, 0.0, 130.0)
    still = later(replace(slow, state=state), 800.0, 1500.0)
    assert still.capacity.derate == state.capacity.derate
    back = later(replace(fast, state=state), 800.0)
    assert back.capacity.slowdown == 1.0 and back.capacity.derate > state.capacity.derate


@pytest.mark.parametrize(
    ("slowdown", "predicted", "derate"), [(1.0, 1.0, 1.0), (1.25, 1.1, 1.1 / 1.25)]
)
def test_served_load_restores_no_more_capacity_than_token_times_allow(
    slowdown: float, predicted: float, derate: float
) -> None:
    """The load is 10 of the planned 8 req/s, and all requests meet the SLO."""
    seen = at_slowdown(slowdown, 10.0)
    known = replace(
        seen.state.capacity,
        derate=0.7, derated_ms=T0 - 600_000, slowdown=slowdown, predicted=predicted,
    )  # fmt: skip
    seen = replace(seen, state=replace(seen.state, capacity=known))
    assert update_derating(seen).capacity.derate == pytest.approx(derate)
