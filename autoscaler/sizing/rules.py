"""The target of one model, computed from the proposals of all sizing rules.

The highest proposal raises the target at once. If no proposal raises it, lasting evidence may lower
it. The need is the part of the target that proposals and the present rate support now. Capacity is
bought for the need only: a target that is still high because an excess must last buys nothing.
"""

from __future__ import annotations

from dataclasses import replace

from autoscaler.domain.reason import Reason
from autoscaler.estimate.arrival_counts import BLOCK_S, since_first_arrival
from autoscaler.estimate.change_point import sizing_rate
from autoscaler.estimate.engine_rate import Moment, is_recent, remember
from autoscaler.estimate.windows import Stats
from autoscaler.sizing.capacity_derating import update_derating
from autoscaler.sizing.scale_in.conditions import LOWER_TARGET, failed_condition, is_unmeasured
from autoscaler.sizing.scale_in.lower_target import lower_target
from autoscaler.sizing.scale_out_rules import (
    expected_req_per_s,
    mean_and_burst,
    proposals_of,
)
from autoscaler.state.model_state import ModelState
from autoscaler.state.model_view import ModelView, TargetProposal
from topics.reason_codes import ReasonCode

_NO_TRAFFIC_S = 600.0  # minimum time without arrivals before the declared rate is dropped


def update_target(view: ModelView) -> ModelState:
    """The model's state with a new target, need and derating, computed from `view`."""
    state = _rate_observed(view, update_derating(view))
    moments = state.estimate.moments
    if not is_recent(moments, view.now_ms):
        moments = remember(moments, _present_moment(view))
        state = replace(state, estimate=replace(state.estimate, moments=moments))
    if state is not view.state:
        view = replace(view, state=state)
    planned = view.planned_req_per_s
    proposals = proposals_of(view)
    need = _need_req_per_s(view, proposals)
    state = replace(state, target=replace(state.target, need_req_per_s=need))
    raised = max(proposals, key=lambda p: _effective_req_per_s(p, planned), default=None)
    if is_unmeasured(view):
        # New lengths change the evaluation of held instances, so the target never exceeds it.
        rate = min(planned, raised.req_per_s) if raised is not None else 0.0
        why = raised.why if raised is not None else None
        held = replace(
            state.target, req_per_s=rate, need_req_per_s=None, why=why, overload_since_ms=0
        )
        return replace(state, target=held)
    if any(_is_proven_surge(proposal) for proposal in proposals):
        rose_ms = state.target.increase_started_ms if view.is_surging else view.now_ms
        state = replace(
            state,
            target=replace(
                state.target, increase_confirmed_ms=view.now_ms, increase_started_ms=rose_ms
            ),
        )
    if raised is not None and _effective_req_per_s(raised, planned) > state.target.req_per_s:
        return _raised(replace(view, state=state), raised)
    may_fall = need is not None and not view.is_surging and (raised is None or not raised.is_proven)
    if may_fall and (lower := lower_target(view)) is not None:
        lowered = replace(
            state.target, req_per_s=lower.req_per_s, why=lower.why, overload_since_ms=0
        )
        return replace(state, target=lowered)
    known, unmet = state.target, state.infeasibility
    if known.needed_req_per_s <= planned and (known.overload_since_ms or unmet.shortage_noticed_ms):
        if view.groups >= view.service.min_instances:
            unmet = replace(unmet, shortage_noticed_ms=0)
        state = replace(state, target=replace(known, overload_since_ms=0), infeasibility=unmet)
    return state


def _need_req_per_s(view: ModelView, proposals: list[TargetProposal]) -> float | None:
    """The rate that present evidence supports: the highest proposal or present estimate. None if
    telemetry may not show all demand; then the whole target counts."""
    seen = view.demand.local
    if not view.state.estimate.rate_observed or not isinstance(seen, Stats):
        return None
    if failed_condition(view, LOWER_TARGET) is not None:
        return None
    mean, burst = mean_and_burst(view.demand.blocks, view.service.percentile)
    return max(
        seen.req_per_s,
        sizing_rate(view.demand, view.policy).likely_req_per_s,
        burst if burst > mean else 0.0,
        expected_req_per_s(view),
        *(_effective_req_per_s(one, view.planned_req_per_s) for one in proposals),
    )


def _present_moment(view: ModelView) -> Moment:
    """The requests in flight now, according to gateways, or to executors while telemetry is
    missing."""
    seen, demand = view.serving, view.demand
    in_flight = seen.requests_in_engines if demand.is_stale else demand.in_flight
    return Moment(view.now_ms, in_flight, seen.group_counts if demand.counted_by_engines else {})


def _raised(view: ModelView, proposal: TargetProposal) -> ModelState:
    state, planned = view.state, view.planned_req_per_s
    rate = _effective_req_per_s(proposal, planned)
    over_ms = state.target.overload_since_ms
    if rate > planned:
        over_ms = over_ms or proposal.since_ms or view.now_ms
    why = proposal.why
    if (factor := state.capacity.derate) != 1.0:
        code = ReasonCode.DERATED if factor < 1.0 else ReasonCode.LEARNT_CAPACITY
        corrected = Reason(code, view.service.model, quantities=(factor,))
        why = replace(why, because=(*why.because, corrected))
    return replace(
        state, target=replace(state.target, req_per_s=rate, why=why, overload_since_ms=over_ms)
    )


def _is_proven_surge(proposal: TargetProposal) -> bool:
    proven = proposal.is_proven and not proposal.continues_proof
    return proven and proposal.why.code is ReasonCode.SURGE


def _effective_req_per_s(proposal: TargetProposal, planned_req_per_s: float) -> float:
    """The rate that `proposal` may set as target: without proof, at most the planned rate."""
    if proposal.is_proven:
        return proposal.req_per_s
    return min(proposal.req_per_s, planned_req_per_s)


def _rate_observed(view: ModelView, state: ModelState) -> ModelState:
    """`state`, with `rate_observed` set if the measured rate replaces the declared rate: after
    traffic for a whole local window, or after a long time without traffic."""
    if state.estimate.rate_observed:
        return state
    seen_s = BLOCK_S * len(since_first_arrival(view.demand.blocks))
    none_s = max(2.0 * view.service.scale_in_after_s, _NO_TRAFFIC_S)
    waited = view.now_ms - view.started_ms >= none_s * 1000
    silent = not seen_s and waited and failed_condition(view, LOWER_TARGET) is None
    if seen_s >= view.policy.local_window_s or silent:
        return replace(state, estimate=replace(state.estimate, rate_observed=True))
    return state
