"""Apply approved proposals, then planner answers, then the waves of rollouts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from autoscaler.apply.approvals import resolve_approvals
from autoscaler.apply.fleet_changes import AppliedPlan
from autoscaler.apply.plan_answer import apply_answer
from autoscaler.apply.roll_versions import roll_versions, with_rollouts
from autoscaler.model.tick_fleet import TickFleet
from autoscaler.planning.planner_messages import Outcome, PlanAnswer, Urgency
from autoscaler.replan.launch_limits import obtainable_nodes, unusable_nodes
from autoscaler.replan.plan_request import within_deadline
from autoscaler.rollout.bin_packing import used_gpus
from autoscaler.rollout.diff import FreeCapacity, spare_usd_per_h
from autoscaler.state.controller_state import FullPlans, Pending
from autoscaler.state.quality_state import SplitState
from autoscaler.state.replan_trigger import Trigger
from autoscaler.tick.route_hooks import ADOPT_ANSWER, ADVANCE_SPLITS
from topics.decisions import Decision


@dataclass(frozen=True, slots=True)
class AppliedPlans:
    """Result of applying approvals and answers. fleet: the fleet afterwards. pending: requests that
    are not answered yet. again: triggers of full plans that failed. replan: triggers for models
    whose plan was applied only in part.
    """

    fleet: TickFleet
    next_serial: int
    pending: Mapping[Urgency, Pending]
    splits: Mapping[str, SplitState]
    full: FullPlans
    again: tuple[Trigger, ...]
    replan: tuple[Trigger, ...]
    decisions: tuple[Decision, ...]


def apply_plans(fleet: TickFleet) -> AppliedPlans:
    """Apply all approved proposals and all answers of this observation, and advance rollouts."""
    inputs, now_ms = fleet.inputs, fleet.now_ms
    state, observation, declared = inputs.state, inputs.observation, inputs.declared
    splits, decisions = state.splits, list[Decision]()
    if declared.routes:
        splits, decisions = ADVANCE_SPLITS(splits, fleet.views, declared, now_ms)
    pending = within_deadline(state.pending, now_ms)
    proposed = any(known.advisory.proposal is not None for known in fleet.models.values())
    if not (observation.answers or proposed or with_rollouts(fleet)):
        serial = state.numbers.group
        return AppliedPlans(fleet, serial, pending, splits, state.full, (), (), tuple(decisions))
    applied = AppliedPlan(fleet.groups, _free_capacity(fleet), fleet.models)
    replan = list[Trigger]()
    if proposed:
        applied = resolve_approvals(fleet, applied.site)
        decisions += applied.decisions
        replan += applied.replan
        fleet = _after(fleet, applied)

    again, full = list[Trigger](), state.full
    for answer in observation.answers:
        asked = pending.get(answer.urgency)
        if asked is None or asked.request.number != answer.number:
            continue  # ignore the answer to an abandoned request
        del pending[answer.urgency]
        applied = apply_answer(answer, asked, fleet, applied.site)
        decisions += applied.decisions
        replan += applied.replan
        if declared.routes:
            splits, notices = ADOPT_ANSWER(splits, answer, asked.request, declared, now_ms)
            decisions += notices
        if answer.urgency is Urgency.FULL and answer.outcome is Outcome.NONE:
            again += [Trigger(asked.request.scope, why) for why in asked.reasons]
            failed = dict.fromkeys(asked.request.scope, now_ms)
            full = replace(full, failed_ms={**full.failed_ms, **failed})
        elif answer.urgency is Urgency.FULL:
            full = _with_plan(full, answer, fleet.managed, now_ms)
        fleet = _after(fleet, applied)

    applied = roll_versions(fleet, applied.site)
    decisions += applied.decisions
    if applied.models is not fleet.models:
        fleet = _after(fleet, applied)

    serial = applied.site.serial
    return AppliedPlans(
        fleet, serial, pending, splits, full, tuple(again), tuple(replan), tuple(decisions)
    )


def _free_capacity(fleet: TickFleet) -> FreeCapacity:
    """Capacity for new groups. The budget does not count lost nodes, so that they can be
    replaced."""
    sight, cluster = fleet.sight, fleet.cluster
    heard = [status for status in sight.fleet.running if status.node not in sight.gone]
    used = used_gpus(fleet.groups, heard)
    serial = fleet.inputs.state.numbers.group
    site = FreeCapacity(cluster, used, obtainable_nodes(fleet), unusable_nodes(fleet), serial)
    if cluster.policy.budget_usd_per_h <= 0.0:
        return site
    spare = spare_usd_per_h(cluster, used.keys() - sight.unpaid(fleet.groups))
    return replace(site, spare_usd_per_h=spare)


def _after(fleet: TickFleet, applied: AppliedPlan) -> TickFleet:
    """The fleet with the groups and states of `applied`."""
    sight = fleet.sight.with_new(applied.groups)
    return fleet.changed(applied.groups, dict(applied.models), sight)


def _with_plan(
    full: FullPlans, answer: PlanAnswer, managed: Collection[str], now_ms: int
) -> FullPlans:
    """`full` updated with `answer`. An answer for recommended models alone does not change
    `made_ms` and `gap`."""
    left = {model: at_ms for model, at_ms in full.failed_ms.items() if model not in answer.scope}
    full = replace(full, failed_ms=left, failure_noticed_ms=full.failure_noticed_ms if left else 0)
    if not any(model in managed for model in answer.scope):
        return full
    return replace(full, made_ms=now_ms, gap=answer.gap)
