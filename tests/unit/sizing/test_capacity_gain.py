"""Measurements raise the planned capacity by small steps, and misses take the gain back at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.estimate.windows import Stats, TokenSums
from autoscaler.sizing.capacity_derating import update_derating
from autoscaler.sizing.capacity_gain import gain_is_lost
from autoscaler.state.model_state import ModelState
from autoscaler.state.model_view import ModelView, ObservedServing
from tests.unit.sizing.target_views import T0, stats
from tests.unit.sizing.test_engine_slowdown import COMBO, at_slowdown
from topics.reason_codes import ReasonCode

TEN_MINUTES = 600.0


def measured(
    slowdown: float = 1.0, req_per_s: float = 6.0, predicted: float = 1.4, highest: float = 2.0
) -> ModelView:
    """A model whose plan is below its prediction by the factor `predicted`."""
    seen = at_slowdown(slowdown, req_per_s)
    return with_capacity(seen, predicted=predicted, highest=highest, derated_ms=T0 - 600_000)


def with_capacity(seen: ModelView, **changes: float) -> ModelView:
    capacity = replace(seen.state.capacity, **changes)  # type: ignore[arg-type]
    return replace(seen, state=replace(seen.state, capacity=capacity))


def after(seen: ModelView, steps: int, every_s: float = TEN_MINUTES) -> ModelState:
    """The state after `steps` updates with equal statistics."""
    state = seen.state
    for step in range(steps):
        now_ms = T0 + round(1000 * step * every_s)
        state = update_derating(replace(seen, state=state, now_ms=now_ms))
    return state


def missed(arrivals: int, misses: int) -> ModelDemand:
    """Seconds of load with misses only in the last 20 s, and a local window without any."""
    sums = TokenSums(arrivals, 0, arrivals, 0, attained=arrivals - misses)
    seen = stats(6 * arrivals, 120)
    return ModelDemand(local=seen, long=seen, recent_tokens=(sums,), reported_ms=T0)


def test_token_times_as_predicted_raise_a_cautious_plan_to_the_prediction() -> None:
    assert after(measured(), 1).capacity.derate == pytest.approx(1.03)
    assert after(measured(), 2, every_s=599.0).capacity.derate == pytest.approx(1.03)
    assert after(measured(), 40).capacity.derate == pytest.approx(1.4)


def test_slower_tokens_raise_it_less() -> None:
    assert after(measured(slowdown=1.15, req_per_s=5.0), 40).capacity.derate == pytest.approx(
        1.4 / 1.15, rel=1e-3
    )


def test_few_requests_in_decoding_prove_nothing() -> None:
    assert after(measured(req_per_s=1.0), 40).capacity.derate == 1.0


@pytest.mark.parametrize(("req_per_s", "derate"), [(8.0, 1.03**8), (4.0, 1.0)])
def test_fast_tokens_prove_more_than_predicted_only_near_the_planned_load(
    req_per_s: float, derate: float
) -> None:
    """The planned load is 8 req/s times the factor, and 0.8 of it must be served."""
    fast = measured(0.75, req_per_s, predicted=1.0)
    fast = with_capacity(fast, slowdown=0.75)
    assert after(fast, 40).capacity.derate == pytest.approx(derate)


def test_a_gain_ends_at_the_upper_end_of_the_interval() -> None:
    assert after(measured(predicted=1.4, highest=1.2), 40).capacity.derate == pytest.approx(1.2)


def test_a_gain_of_fast_tokens_ends_with_them() -> None:
    seen = with_capacity(measured(1.0, predicted=1.0), derate=1.5, slowdown=0.6)
    found = after(seen, 1)
    assert found.capacity.derate == 1.0
    assert found.target.why is not None and found.target.why.code is ReasonCode.SLOW_ENGINES


@pytest.mark.parametrize(
    ("served", "tpot_ms", "derate"),
    [(9.0, 30.0, 1.0), (12.0, 30.0, 1.2), (30.0, 12.0, 2.0), (12.0, 80.0, 1.0), (12.0, None, 1.0)],
)
def test_a_load_above_the_whole_capacity_is_proof(
    served: float, tpot_ms: float | None, derate: float
) -> None:
    """The whole capacity is 10 req/s, of which 8 are planned. Tokens must not be slow."""
    seen = stats(round(120 * served), 120)
    seen = replace(seen, mean_output_tokens=100.0, tpot_p50_ms=tpot_ms)
    full = measured(predicted=1.0)
    full = replace(full, demand=ModelDemand(local=seen, long=seen, reported_ms=T0))
    assert after(full, 1).capacity.derate == pytest.approx(derate)


def test_a_gain_by_load_outlasts_it() -> None:
    """The prediction limits a gain only while tokens are slow, and when they end to be so."""
    seen = with_capacity(measured(predicted=1.0), derate=1.2, derated_ms=T0)
    assert after(seen, 1).capacity.derate == 1.2


@pytest.mark.parametrize("starting", [True, False])
def test_misses_of_half_a_minute_take_a_gain_back_at_once(starting: bool) -> None:
    seen = with_capacity(measured(), derate=1.3, derated_ms=T0 - 1000)
    serving = ObservedServing(ready=(COMBO,), nothing_starting=not starting)
    seen = replace(seen, serving=serving, demand=missed(120, 100))
    found = after(seen, 1)
    assert (found.capacity.derate, found.capacity.gain_lost_ms) == (1.0, T0)
    assert found.target.why is not None and found.target.why.code is ReasonCode.OVERESTIMATED


@pytest.mark.parametrize(
    ("arrivals", "misses"),
    [(120, 9), (400, 300)],  # chance; more than the ready instances should carry
)
def test_chance_and_overload_take_no_gain_back(arrivals: int, misses: int) -> None:
    seen = with_capacity(measured(), derate=1.3, derated_ms=T0 - 1000)
    assert after(replace(seen, demand=missed(arrivals, misses)), 1).capacity.derate == 1.3


def test_a_lost_gain_is_learnt_again_after_six_hours() -> None:
    lost = with_capacity(measured(), gain_lost_ms=T0 - 6 * 3_600_000 + 1000)
    assert after(lost, 1).capacity.derate == 1.0
    assert after(lost, 2).capacity.derate == pytest.approx(1.03)


def test_misses_within_the_percentile_are_needed_for_a_gain() -> None:
    seen = measured()
    local = seen.demand.local
    assert isinstance(local, Stats)
    some = replace(local, attained=round(0.95 * local.arrivals))
    at_limit = replace(seen, demand=replace(seen.demand, local=some, long=some))
    assert after(at_limit, 3).capacity.derate == 1.0


@pytest.mark.parametrize(("arrivals", "lost"), [(170, True), (280, False)])
def test_misses_end_a_gain_only_at_loads_that_the_instances_should_carry(
    arrivals: int, lost: bool
) -> None:
    """In 20 s they should carry 10 req/s x 0.8 x 1.4 x 20 s = 224 requests."""
    seen = with_capacity(measured(), derate=1.4)
    assert gain_is_lost(replace(seen, demand=missed(arrivals, arrivals - 20))) is lost
