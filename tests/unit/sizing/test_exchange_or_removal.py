"""Exchanges of capacity: small losses need no evidence, larger ones count as removals."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import cast

from autoscaler.domain.cluster import Cluster, Policy
from autoscaler.domain.reason import codes_of
from autoscaler.domain.workload import Lengths
from autoscaler.estimate.model_demand import UNKNOWN_DEMAND, ModelDemand
from autoscaler.model.tick_fleet import TickFleet, TickInputs
from autoscaler.planning.planner_messages import FleetChange
from autoscaler.rollout.fleet_snapshot import FleetSnapshot
from autoscaler.sizing.scale_in.removal import scale_in_veto
from autoscaler.state.controller_state import ControllerState, Observation, Term
from autoscaler.state.model_state import (
    Advisory,
    DemandEstimate,
    Hysteresis,
    ModelState,
    PendingApproval,
    Reversals,
    Target,
)
from autoscaler.state.model_view import ModelView
from tests.unit.decide.decide_catalogue import AGGREGATED, combo, pool, service
from tests.unit.sizing.target_views import stats
from topics.reason_codes import ReasonCode

NOW = 1_700_000_000_000
POOL = pool("p", per_node=4)
OLD = replace(combo("chat", [(AGGREGATED, 1, POOL, 1, 1.0)]), req_per_s=1.0)
NEW = replace(combo("chat", [(AGGREGATED, 4, POOL, 1, 3.9)]), req_per_s=3.9)
SEEN = ModelDemand(local=stats(120, 120), long=stats(1800, 1800))
VIEW = ModelView(
    service("chat"),
    Policy(),
    NOW,
    NOW - 3_600_000,
    ModelState(
        DemandEstimate(Lengths(100, 100)),
        target=Target(req_per_s=1.0),
        hysteresis=Hysteresis(Reversals("out", (NOW - 10_000,) * 9)),
    ),
    SEEN,
    raw_req_per_s=8.0,
)


def why(
    adds: int, removes: int, demand: ModelDemand = SEEN, seen: ModelView = VIEW
) -> tuple[ReasonCode, ...]:
    cluster = Cluster((POOL,), (VIEW.service,), VIEW.policy)
    combos = {OLD.id: OLD, NEW.id: NEW}
    inputs = TickInputs(NOW, ControllerState(Term(NOW)), Observation(), cluster, cluster, combos)
    fleet = TickFleet(inputs, (), {}, {}, cast(FleetSnapshot, None))
    added, removed = Counter({NEW.id: adds}), Counter({OLD.id: removes})
    kept = scale_in_veto(replace(seen, demand=demand), +added, removed, 0.0, fleet.combos)
    return codes_of([kept]) if kept is not None else ()


def test_an_exchange_of_equal_capacity_is_no_reversal() -> None:
    assert why(adds=1, removes=4) == ()  # 3.9 replaces 4.0 of 8.0 req/s: 1% less
    assert ReasonCode.TOO_MANY_REVERSALS in why(adds=1, removes=6)
    assert ReasonCode.TOO_MANY_REVERSALS in why(adds=0, removes=1)


def test_an_exchange_that_loses_capacity_needs_the_evidence_of_a_removal() -> None:
    """Ten exchanges that each lose a tenth would amount to a removal."""
    missed = replace(SEEN, local=stats(120, 120, attained=60))
    stale = replace(SEEN, local=stats(120, 120, age_ms=30_000))
    assert ReasonCode.SLO_STRAINED in why(adds=1, removes=4, demand=missed)
    assert ReasonCode.TELEMETRY_STALE in why(adds=1, removes=4, demand=stale)
    assert {ReasonCode.TELEMETRY_STALE, ReasonCode.NO_TELEMETRY} & {
        *why(adds=1, removes=4, demand=UNKNOWN_DEMAND)
    }
    assert why(adds=1, removes=3, demand=UNKNOWN_DEMAND) == ()  # 3.9 replaces 3.0 req/s


def test_additions_that_wait_for_approval_cover_nothing() -> None:
    """The view counts an open proposal, but not a rejected one."""
    change = ((NEW.id, 1),)
    open_ = PendingApproval(1, "scale_out", change, FleetChange(), (), (), NOW, NOW + 60_000)
    for rejected in (False, True):
        asked = replace(open_, rejected=rejected)
        state = replace(VIEW.state, target=Target(req_per_s=5.0), advisory=Advisory(proposal=asked))
        codes = why(adds=1, removes=4, seen=replace(VIEW, state=state))
        assert (ReasonCode.NOT_COVERED in codes) is not rejected
