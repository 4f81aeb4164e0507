"""What people approved and what the planner answered is carried out, one after the other.

Owns the order, and what is remembered of full plans that came or did not. What of an answer is
carried out is for `answers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from autoscaler.apply.approvals import settle
from autoscaler.apply.context import Scene
from autoscaler.apply.plan_answer import Carried, carry_out
from autoscaler.model.update import seen_again
from autoscaler.planning.planner_messages import Outcome, PlanAnswer, Urgency
from autoscaler.replan.plan_request import Ground, alive
from autoscaler.rollout.backoff import swept
from autoscaler.rollout.bin_packing import used_gpus
from autoscaler.rollout.diff import Site, spare_usd_per_h
from autoscaler.state.controller_state import FullPlans, Pending, SplitState
from autoscaler.state.model_view import ModelView
from autoscaler.state.replan_trigger import Trigger
from autoscaler.tick.observe import Found
from autoscaler.tick.quality_thresholds import adopted, in_force
from autoscaler.tick.size import Wanted
from topics.decisions import Decision


@dataclass(frozen=True, slots=True)
class Done:
    """What came of approvals and answers.

    ground: everything as it is now. pending: requests that are not answered yet. again: what asked
    for a full plan that did not come. replan: for models of which a part was left out.
    """

    ground: Ground
    next_serial: int
    pending: Mapping[Urgency, Pending]
    splits: Mapping[str, SplitState]
    full: FullPlans
    again: tuple[Trigger, ...]
    replan: tuple[Trigger, ...]
    decisions: tuple[Decision, ...]


def carry(found: Found, wanted: Wanted) -> Done:
    """Carry out all that may be now."""
    inputs, cluster = found.inputs, found.cluster
    state, observation, now_ms = inputs.state, inputs.observation, inputs.now_ms
    priced, combos = inputs.cluster, inputs.combos
    groups, models, seen, sight = wanted.groups, wanted.models, wanted.views, wanted.sight
    backoff = swept(found.faults.backoff, now_ms)
    ground = Ground(priced, sight, groups, models, seen, found.supply, backoff, now_ms, combos)
    splits, decisions = in_force(state.splits, seen, cluster, now_ms)
    heard = (status for status in sight.fleet.running if status.node not in sight.gone)
    used = used_gpus(groups, heard)
    # What is lost has to be replaced.
    spare = spare_usd_per_h(priced, used.keys() - sight.unpaid(groups))
    site = Site(priced, used, ground.obtainable(), ground.shut(), state.next_serial, spare)

    scene = Scene(priced, sight, combos, seen, now_ms)
    settled = settle(groups, site, models, observation.controls, state.leader_token, scene)
    carried = Carried(settled.groups, settled.site, settled.models)
    decisions = [*decisions, *settled.decisions]
    if settled.models is not models:
        sight = sight.with_new(carried.groups)
        models = dict(carried.models)
        seen = seen_again(seen, inputs, groups, carried.groups, models, sight)

    replan, again, full = [*settled.replan], list[Trigger](), state.full
    pending = alive(state.pending, now_ms)
    for answer in observation.answers:
        asked = pending.get(answer.urgency)
        if asked is None or asked.request.number != answer.number:
            continue  # the answer to a request that was given up
        del pending[answer.urgency]
        scene = Scene(priced, sight, combos, seen, now_ms)
        before = carried.groups
        carried = carry_out(answer, asked, before, carried.site, carried.models, scene)
        decisions += carried.decisions
        replan += carried.replan
        splits, told = adopted(splits, answer, asked.request, cluster, now_ms)
        decisions += told
        if answer.urgency is Urgency.FULL and answer.outcome is Outcome.NONE:
            again += [Trigger(asked.request.scope, why) for why in asked.reasons]
            failed = dict.fromkeys(asked.request.scope, now_ms)
            full = replace(full, failed_ms={**full.failed_ms, **failed})
        elif answer.urgency is Urgency.FULL:
            full = _made(full, answer, seen, now_ms)
        sight = sight.with_new(carried.groups)
        models = dict(carried.models)
        seen = seen_again(seen, inputs, before, carried.groups, models, sight)

    ground = replace(ground, sight=sight, groups=carried.groups, models=models, views=seen)
    serial = carried.site.serial
    return Done(
        ground, serial, pending, splits, full, tuple(again), tuple(replan), tuple(decisions)
    )


def _made(
    full: FullPlans, answer: PlanAnswer, views: Mapping[str, ModelView], now_ms: int
) -> FullPlans:
    """What is remembered once `answer` came. One that only recommends changes nothing that runs."""
    left = {model: at_ms for model, at_ms in full.failed_ms.items() if model not in answer.scope}
    full = replace(full, failed_ms=left, told_ms=full.told_ms if left else 0)
    if not any(model in views and views[model].service.managed for model in answer.scope):
        return full
    return replace(full, made_ms=now_ms, gap=answer.gap)
