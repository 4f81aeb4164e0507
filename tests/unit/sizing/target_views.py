"""Builders of a model's view for the tests of target rules."""

from __future__ import annotations

from dataclasses import replace

from autoscaler.domain.cluster import Policy
from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.estimate.windows import Stats
from autoscaler.state.model_state import Capacity, DemandEstimate, ModelState, Target
from autoscaler.state.model_view import ModelView, ObservedServing
from tests.unit.decide.decide_catalogue import BUCKET, pool, service, simple

T0 = 1_700_000_000_000
POLICY = Policy()
(TEN,) = simple("chat", pool())
"""A combo that serves 10 req/s."""


def stats(arrivals: int, covered_s: int, attained: int | None = None, age_ms: int = 0) -> Stats:
    """A window in which every request ended, `attained` of them within the SLO (None: all)."""
    met = arrivals if attained is None else attained
    rate = arrivals / covered_s
    return Stats(covered_s, age_ms, arrivals, arrivals, 0, 0, met, rate, None, None, None, None)


def view(demand: ModelDemand, planned: float = 8.0, **changes: object) -> ModelView:
    """A stable model with capacity for `planned` req/s, an hour after the start."""
    state = ModelState(
        DemandEstimate(BUCKET, rate_observed=True),
        target=Target(req_per_s=planned),
        capacity=Capacity(settled_ms=T0 - 3_600_000),
    )
    made = ModelView(
        serving=ObservedServing(
            ready=(replace(TEN, req_per_s=max(planned, 1e-9) / 0.8),), nothing_starting=True
        ),
        service=service(),
        policy=POLICY,
        now_ms=T0,
        started_ms=T0 - 3_600_000,
        state=state,
        demand=demand,
        groups=1,
        raw_req_per_s=planned / 0.8,
    )
    return replace(made, **changes)  # type: ignore[arg-type]
