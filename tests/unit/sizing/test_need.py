"""Only the need buys capacity; a target that is still high keeps capacity and buys none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.estimate.model_demand import UNKNOWN_DEMAND, ModelDemand
from autoscaler.estimate.window_stats import GatewayReport
from autoscaler.sizing.rules import update_target
from autoscaler.sizing.scale_in.removal import models_that_may_not_shrink
from autoscaler.state.model_state import Target
from autoscaler.state.model_view import ModelView
from tests.unit.sizing.target_views import T0, stats, view


def steady(*rates: float) -> ModelDemand:
    """Demand with each of `rates` for two minutes. The last rate fills the local window."""
    blocks = tuple((10, round(10 * rate)) for rate in rates for _ in range(12))
    recent = tuple((n, round(rates[-1] * n)) for n in (1, 2, 5, 10, 30, 60))
    return ModelDemand(recent, stats(round(rates[-1] * 120), 120), blocks=blocks, reported_ms=T0)


def after_a_loss(demand: ModelDemand, planned: float = 4.0) -> ModelView:
    """A model with a target of 8 req/s that has lost all but `planned` req/s of its capacity."""
    seen = view(demand, planned)
    seen = replace(seen, state=replace(seen.state, target=Target(req_per_s=8.0)))
    return replace(seen, state=update_target(seen))


@pytest.mark.parametrize(("rate", "buys"), [(2.0, False), (3.5, False), (4.5, True), (7.0, True)])
def test_a_lost_node_is_replaced_only_if_the_present_rate_needs_it(rate: float, buys: bool) -> None:
    """The rest serves 4 req/s. An excess has not lasted, so the target stays 8 req/s."""
    seen = after_a_loss(steady(8.0, rate))
    assert seen.state.target.req_per_s == 8.0
    assert seen.covers is not buys
    assert (seen.kept_req_per_s == 4.0) is not buys


def test_while_a_gateway_is_silent_the_whole_target_is_needed() -> None:
    """Its traffic is missing from the rate."""
    silent = GatewayReport("g1", "b1", T0 - 60_000, 0, 0, 60_000, T0 - 60_000)
    seen = after_a_loss(replace(steady(8.0, 2.0), gateways=(silent,)))
    assert not seen.covers


def test_without_telemetry_the_whole_target_is_needed() -> None:
    seen = after_a_loss(UNKNOWN_DEMAND)
    assert not seen.covers
    assert seen.required_req_per_s == 8.0


def test_the_need_follows_a_proven_increase_at_once() -> None:
    seen = after_a_loss(steady(8.0, 2.0, 12.0), planned=9.0)
    assert not seen.covers
    assert seen.required_req_per_s > 11.0


def test_the_need_is_never_above_the_target() -> None:
    """Less than the tolerance is missing, so the target stays."""
    seen = after_a_loss(steady(8.1), planned=8.0)
    assert seen.required_req_per_s <= seen.state.target.req_per_s


def test_a_slow_stream_without_bursts_needs_less_than_one_request_a_second() -> None:
    seen = after_a_loss(steady(0.2, 0.2), planned=0.5)
    assert seen.covers


def test_a_lower_target_ends_an_overload() -> None:
    seen = view(steady(*[1.0] * 12))
    seen = replace(seen, state=replace(seen.state, target=Target(8.0, overload_since_ms=T0 - 1000)))
    target = update_target(seen).target
    assert target.req_per_s < 8.0
    assert target.overload_since_ms == 0


def test_while_a_model_is_short_any_model_may_give_capacity() -> None:
    """Otherwise a model without evidence of an excess keeps what it has."""
    unknown = replace(view(UNKNOWN_DEMAND), started_ms=T0)
    assert unknown.covers
    assert models_that_may_not_shrink([unknown]) == ("chat",)
    short = after_a_loss(steady(8.0, 7.0))
    assert not short.covers
    assert models_that_may_not_shrink([unknown, short]) == ()
