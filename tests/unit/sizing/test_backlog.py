"""A backlog of requests raises the target at once, by the amount that it proves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.estimate.engine_rate import MOST_LOAD, EngineRate, Moment
from autoscaler.estimate.model_demand import ModelDemand, increase_spans_s
from autoscaler.estimate.queue_model import expected_in_flight
from autoscaler.estimate.window_stats import GatewayReport
from autoscaler.sizing.scale_out_rules import queue_growth
from autoscaler.state.model_view import ModelView
from tests.unit.sizing.target_views import POLICY, T0, stats, view
from topics.reason_codes import ReasonCode


def piled(times: float, req_per_s: int = 8, planned: float = 7.9) -> ModelView:
    """Two minutes of a rate. Requests in flight are `times` as many as the rate explains."""
    recent = tuple(
        (seconds, req_per_s * seconds) for seconds in increase_spans_s(POLICY) if seconds <= 120
    )
    local = stats(req_per_s * 120, 120)
    demand = ModelDemand(recent, local, blocks=((10, req_per_s * 10),) * 12)
    found = view(demand, planned)
    expected = expected_in_flight(req_per_s, found.serving.ready, found.state.estimate.lengths)
    seen = GatewayReport("a", "boot", T0, round(times * expected), 0)
    return replace(found, demand=replace(demand, gateways=(seen,)))


def test_a_backlog_raises_the_target_at_most_to_the_upper_bound_of_the_rate() -> None:
    """No test of the rate can distinguish 32 req/s from the planned 31.9. But 1.6 times the
    expected requests in flight prove an excess. Two minutes of arrivals limit the increase to 3%.
    """
    found = queue_growth(piled(1.6, 32, 31.9))
    assert found is not None and found.is_proven
    assert 32.5 < found.req_per_s < 33.0
    assert found.why.code is ReasonCode.BACKLOG
    assert [round(one) for one in found.why.quantities[:3]] == [220, 32, 138]


def test_requests_in_flight_that_the_load_explains_raise_no_target() -> None:
    assert queue_growth(piled(1.0)) is None


def test_a_shrinking_queue_raises_no_target() -> None:
    """It dates from a time of insufficient capacity."""
    full = piled(4.0)
    assert queue_growth(full) is not None
    moments = Moment(T0 - 30_000, full.demand.in_flight + 1), Moment(T0 - 10_000, 0)
    before = replace(full.state, estimate=replace(full.state.estimate, moments=moments))
    assert queue_growth(replace(full, state=before)) is None


def test_a_backlog_during_a_start_raises_no_target() -> None:
    assert (
        queue_growth(
            replace(piled(4.0), serving=replace(piled(4.0).serving, nothing_starting=False))
        )
        is None
    )
    assert queue_growth(replace(piled(4.0), serving=replace(piled(4.0).serving, ready=()))) is None


def test_slow_engines_with_enough_capacity_raise_no_target() -> None:
    """Slower engines have more requests in flight, but the rate needs no more capacity."""
    assert queue_growth(piled(4.0, planned=30.0)) is None


@pytest.mark.parametrize(
    ("times", "rate", "order"),
    [(1.0, None, None), (1.6, None, 51.2), (9.0, None, 80.0), (1.6, 24.0, 51.2)],
)
def test_without_telemetry_the_requests_in_engines_raise_the_target_at_most_twofold(
    times: float, rate: float | None, order: float | None
) -> None:
    """The last report is a minute old. Executors still report the requests in their engines. They
    are compared with the rate that engines count, or with the plan if an older executor counts
    nothing."""
    unseen = view(ModelDemand(local=stats(960, 120, age_ms=60_000)), planned=32.0)
    expected = expected_in_flight(32.0, unseen.serving.ready, unseen.state.estimate.lengths)
    serving = replace(
        unseen.serving,
        requests_in_engines=round(times * expected),
        engine_rates=(EngineRate(rate, 60.0),) if rate else (),
    )
    found = queue_growth(replace(unseen, serving=serving))
    assert (found is None) is (order is None)
    if found is not None and order is not None:
        assert found.req_per_s == pytest.approx(order, rel=0.02)
        assert found.req_per_s <= MOST_LOAD * unseen.raw_req_per_s
        assert found.why.code is ReasonCode.BACKLOG
