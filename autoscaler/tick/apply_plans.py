"""Apply approved proposals, then planner answers, in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from autoscaler.apply.approvals import resolve_approvals
from autoscaler.apply.context import ChangeContext
from autoscaler.apply.plan_answer import AppliedPlan, apply_answer
from autoscaler.model.update import refresh_views
from autoscaler.planning.planner_messages import Outcome, PlanAnswer, Urgency
from autoscaler.replan.plan_request import PlanningContext, within_deadline
from autoscaler.rollout.backoff import swept
from autoscaler.rollout.bin_packing import used_gpus
from autoscaler.rollout.diff import FreeCapacity, spare_usd_per_h
from autoscaler.state.controller_state import FullPlans, Pending, SplitState
from autoscaler.state.model_view import ModelView
from autoscaler.state.replan_trigger import Trigger
from autoscaler.tick.observe import ObservedTick
from autoscaler.tick.quality_thresholds import adopt_answer, advance_splits
from autoscaler.tick.size import SizedTick
from topics.decisions import Decision


@dataclass(frozen=True, slots=True)
class AppliedPlans:
    """Result of applying approvals and answers. ground: the context afterwards. pending: requests
    that are not answered yet. again: triggers of full plans that failed. replan: triggers for
    models whose plan was applied only in part.
    """

    ground: PlanningContext
    next_serial: int
    pending: Mapping[Urgency, Pending]
    splits: Mapping[str, SplitState]
    full: FullPlans
    again: tuple[Trigger, ...]
    replan: tuple[Trigger, ...]
    decisions: tuple[Decision, ...]


def apply_plans(observed: ObservedTick, sized: SizedTick) -> AppliedPlans:
    """Apply all approved proposals and all answers of this observation."""
    inputs, cluster = observed.inputs, observed.cluster
    state, observation, now_ms = inputs.state, inputs.observation, inputs.now_ms
    priced, combos = inputs.cluster, inputs.combos
    groups, models, current_views, sight = sized.groups, sized.models, sized.views, sized.sight
    backoff = swept(observed.faults.backoff, now_ms)
    ground = PlanningContext(
        priced, sight, groups, models, current_views, observed.supply, backoff, now_ms, combos
    )
    splits, decisions = advance_splits(state.splits, current_views, cluster, now_ms)
    reporting = (status for status in sight.fleet.running if status.node not in sight.gone)
    used = used_gpus(groups, reporting)
    # The budget does not count lost nodes, so that they can be replaced.
    spare = spare_usd_per_h(priced, used.keys() - sight.unpaid(groups))
    site = FreeCapacity(
        priced, used, ground.obtainable(), ground.unusable_nodes(), state.next_serial, spare
    )

    scene = ChangeContext(priced, sight, combos, current_views, now_ms)
    settled = resolve_approvals(
        groups, site, models, observation.controls, state.leader_token, scene
    )
    carried = AppliedPlan(settled.groups, settled.site, settled.models)
    decisions = [*decisions, *settled.decisions]
    if settled.models is not models:
        sight = sight.with_new(carried.groups)
        models = dict(carried.models)
        current_views = refresh_views(current_views, inputs, groups, carried.groups, models, sight)

    replan, again, full = [*settled.replan], list[Trigger](), state.full
    pending = within_deadline(state.pending, now_ms)
    for answer in observation.answers:
        asked = pending.get(answer.urgency)
        if asked is None or asked.request.number != answer.number:
            continue  # ignore the answer to an abandoned request
        del pending[answer.urgency]
        scene = ChangeContext(priced, sight, combos, current_views, now_ms)
        before = carried.groups
        carried = apply_answer(answer, asked, before, carried.site, carried.models, scene)
        decisions += carried.decisions
        replan += carried.replan
        splits, told = adopt_answer(splits, answer, asked.request, cluster, now_ms)
        decisions += told
        if answer.urgency is Urgency.FULL and answer.outcome is Outcome.NONE:
            again += [Trigger(asked.request.scope, why) for why in asked.reasons]
            failed = dict.fromkeys(asked.request.scope, now_ms)
            full = replace(full, failed_ms={**full.failed_ms, **failed})
        elif answer.urgency is Urgency.FULL:
            full = _with_plan(full, answer, current_views, now_ms)
        sight = sight.with_new(carried.groups)
        models = dict(carried.models)
        current_views = refresh_views(current_views, inputs, before, carried.groups, models, sight)

    ground = replace(ground, sight=sight, groups=carried.groups, models=models, views=current_views)
    serial = carried.site.serial
    return AppliedPlans(
        ground, serial, pending, splits, full, tuple(again), tuple(replan), tuple(decisions)
    )


def _with_plan(
    full: FullPlans, answer: PlanAnswer, views: Mapping[str, ModelView], now_ms: int
) -> FullPlans:
    """`full` updated with `answer`. An answer for recommended models alone does not change
    `made_ms` and `gap`."""
    left = {model: at_ms for model, at_ms in full.failed_ms.items() if model not in answer.scope}
    full = replace(full, failed_ms=left, failure_noticed_ms=full.failure_noticed_ms if left else 0)
    if not any(model in views and views[model].service.managed for model in answer.scope):
        return full
    return replace(full, made_ms=now_ms, gap=answer.gap)
