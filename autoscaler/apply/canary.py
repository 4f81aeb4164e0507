"""The canary of a rollout: its comparison with the former version, and the verdict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from autoscaler.domain.cluster import Service
from autoscaler.domain.reason import Reason
from autoscaler.domain.rollout_policy import CanaryPolicy
from autoscaler.model.tick_fleet import TickFleet
from autoscaler.planning.time_limits import drain_timeout_s
from autoscaler.rollout.canary_routes import FORMER, compared_groups
from autoscaler.rollout.serving_group import ServingGroup
from autoscaler.rollout.version_comparison import (
    NO_PAIR,
    Arm,
    Metric,
    VersionComparison,
    begun,
    value_of,
    with_blocks,
)
from autoscaler.rollout.versions import Version
from autoscaler.state.model_state import ModelState
from autoscaler.state.rollout_state import RolloutState
from topics.reason_codes import ReasonCode

_WARM_UP = 0.25
"""Largest part of the time of a comparison that passes before it begins, so that long answers have
ended at the new instance too."""
_LEAST, _MOST = 0.5, 4.0
"""Range of the capacity factor that a measured speed may lead to."""


def compared(
    state: RolloutState, goal: Version, own: Iterable[ServingGroup], service: Service,
    fleet: TickFleet,
) -> tuple[RolloutState, Reason | None]:  # fmt: skip
    """The state with the requests that both versions ended since the last tick, and the reason to
    take `goal` back if it is worse. own: the model's groups."""
    policy, base = service.rollout.canary, state.base
    if policy is None or base is None or not state.compares(goal):
        return state, None
    known = state.comparison or begun(policy.compare)
    views, now_ms = fleet.sight.views, fleet.now_ms
    up = [one for one in own if (view := views.get(one.name)) is not None and view.all_ready]
    new, old = compared_groups(up, goal, base)
    if not new or not old:
        known = replace(known, serves_ms=known.serves_ms if new else 0, counted_ms=now_ms)
        return replace(state, comparison=known), None
    known = replace(known, serves_ms=known.serves_ms or now_ms)
    if now_ms - known.serves_ms < 1000 * _warm_up_s(policy, service, fleet):
        # A trial has no requests of a cold instance.
        known = replace(known, counted_ms=now_ms, pair=NO_PAIR, errors=NO_PAIR)
        return replace(state, comparison=known), None
    known = replace(known, began_ms=known.began_ms or now_ms)
    combos = fleet.combos
    arms = tuple(
        Arm(tuple(combos[group.combo_id] for group in arm if group.combo_id in combos))
        for arm in (new, old)
    )
    if all(arm.combos for arm in arms):
        seen = fleet.views[service.model].demand.versions
        label = base.digest or FORMER
        known = with_blocks(known, seen, goal.digest, label, (arms[0], arms[1]))
    worst = known.worst
    why = reason_of(ReasonCode.CANARY_WORSE, worst, known, service.model) if worst else None
    return replace(state, comparison=known), why


def verdict(state: RolloutState, service: Service, now_ms: int) -> Reason | None:
    """The reason to continue a rollout with its canary: it is fit, or there was too little
    evidence for too long. None while the comparison goes on."""
    policy, known = service.rollout.canary, state.comparison
    if policy is None or known is None:
        return None
    if known.is_fit:
        weakest = min(known.metrics, key=lambda one: one.fit.log_evidence)
        return reason_of(ReasonCode.CANARY_FIT, weakest, known, service.model)
    if known.serves_ms and now_ms - known.serves_ms >= 1000 * policy.within_s:
        weakest = min(known.metrics, key=lambda one: one.fit.log_evidence)
        return reason_of(ReasonCode.CANARY_UNDECIDED, weakest, known, service.model)
    return None


def reason_of(code: ReasonCode, metric: Metric, known: VersionComparison, model: str) -> Reason:
    """A verdict by `metric`: values of the new and the former version, trials for the verdict, all
    trials, and answers of the new version."""
    test = metric.worse if code is ReasonCode.CANARY_WORSE else metric.fit
    new, old = value_of(metric.name, known.total.new), value_of(metric.name, known.total.old)
    figures = (new, old, float(test.above), float(test.trials), float(known.total.new.completed))
    return Reason(code, model, (metric.name,), figures)


def with_measured_speed(
    before: ModelState, after: RolloutState, share: float, now_ms: int
) -> ModelState:
    """The model's state with the rollout `after`, whose measured speed counts in proportion to the
    `share` of groups that run the new version. A rollout that is taken back, or that another one
    replaces, leaves nothing of it."""
    was = before.rollout
    if after.target and after.target == was.target:
        factor = 1.0 + (after.speed - 1.0) * share
        after = replace(after, applied=factor)
    else:
        is_done = bool(was.target) and after.base is not None and after.base.digest == was.target
        factor = was.speed if is_done else 1.0
    change, known = factor / was.applied, before.capacity
    if change != 1.0:
        derate = min(_MOST, max(_LEAST, known.derate * change))
        known = replace(known, derate=derate, speed=known.speed * change, derated_ms=now_ms)
    return replace(before, rollout=after, capacity=known)


def _warm_up_s(policy: CanaryPolicy, service: Service, fleet: TickFleet) -> float:
    view = fleet.views[service.model]
    longest_s = drain_timeout_s(service, view.policy, view.state.estimate.lengths)
    return max(service.rollout.watch_s, min(longest_s, _WARM_UP * policy.within_s))
