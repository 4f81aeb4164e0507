"""While telemetry is missing, the requests that engines accept raise the target."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.estimate.engine_rate import EngineRate
from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.estimate.windows import GatewayReport
from autoscaler.sizing.scale_in.conditions import EXCHANGE, failed_condition
from autoscaler.sizing.scale_in.lower_target import lower_target
from autoscaler.sizing.scale_out_rules import engine_counts
from autoscaler.state.model_view import ModelView
from tests.unit.sizing.target_views import T0, stats, view
from topics.reason_codes import ReasonCode

HEARD = GatewayReport("a", "boot", T0, 0, 0)


def unseen(*rates: EngineRate, planned: float = 8.0) -> ModelView:
    """A model whose last telemetry is a minute old."""
    found = view(ModelDemand(local=stats(960, 120, age_ms=60_000)), planned)
    return replace(found, serving=replace(found.serving, engine_rates=rates))


def test_a_rate_beyond_chance_is_ordered_with_a_little_headroom() -> None:
    found = engine_counts(unseen(EngineRate(12.0, 60.0)))
    assert found is not None and found.is_proven
    assert 12.0 < found.req_per_s < 13.0
    assert found.why.code is ReasonCode.SURGE
    assert [why.code for why in found.why.because] == [ReasonCode.TELEMETRY_STALE]


@pytest.mark.parametrize(("span_s", "raises"), [(20.0, False), (60.0, False), (120.0, True)])
def test_a_small_excess_must_last(span_s: float, raises: bool) -> None:
    """9.2 req/s on a plan of 8 are 15% too many."""
    assert (engine_counts(unseen(EngineRate(9.2, span_s))) is not None) is raises


def test_the_highest_proven_rate_is_ordered() -> None:
    """The long span includes the time before the increase; the short one proves nothing alone."""
    rates = EngineRate(9.0, 20.0), EngineRate(14.0, 40.0), EngineRate(11.0, 120.0)
    found = engine_counts(unseen(*rates))
    assert found is not None and 14.0 < found.req_per_s < 15.5


def test_planned_rates_and_few_requests_raise_nothing() -> None:
    assert engine_counts(unseen(EngineRate(8.0, 120.0))) is None
    assert engine_counts(unseen(EngineRate(0.1, 20.0), planned=0.0)) is None
    assert engine_counts(unseen()) is None


def silent(rate: float) -> ModelView:
    """A model on one instance, of which gateways reported nothing and engines `rate` in req/s."""
    blocks = ((10, 0),) * 180
    found = view(ModelDemand(local=stats(0, 120), blocks=blocks, reported_ms=T0, gateways=(HEARD,)))
    rates = (EngineRate(rate, 1200.0, instances=1),)
    return replace(found, serving=replace(found.serving, engine_rates=rates))


def test_requests_that_only_engines_counted_keep_their_capacity() -> None:
    found = lower_target(silent(5.0))
    assert found is not None and 4.8 < found.req_per_s < 5.0  # without the probes
    assert found.why.code is ReasonCode.LOWER_DEMAND


@pytest.mark.parametrize("rate", [0.0, 0.2])
def test_probes_of_engines_are_no_demand(rate: float) -> None:
    found = lower_target(silent(rate))
    assert found is not None and found.req_per_s == 0.0 and found.why.code is ReasonCode.IDLE


@pytest.mark.parametrize(("rate", "disagree"), [(0.2, False), (0.5, True)])
def test_engines_that_count_requests_contradict_gateways_without_any(
    rate: float, disagree: bool
) -> None:
    """The zero proves no surplus, so nothing is exchanged or removed."""
    why = failed_condition(silent(rate), EXCHANGE)
    codes = {one.code for one in why.because} if why is not None else set()
    assert (ReasonCode.ENGINES_DISAGREE in codes) is disagree


def test_engines_that_count_requests_of_the_local_window_contradict_nothing() -> None:
    """A slow stream pauses: gateways have reported the requests that engines count."""
    seen = silent(0.5)
    local = stats(60, 120)
    paused = ModelDemand(((1, 0), (10, 0)), local, blocks=((10, 5),) * 180, gateways=(HEARD,))
    assert not paused.shows_arrivals
    assert failed_condition(replace(seen, demand=paused), EXCHANGE) is None
