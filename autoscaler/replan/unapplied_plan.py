"""Trigger: a part of the last answer could not be applied, or additions alone were not enough."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping

from autoscaler.domain.combo import Combo
from autoscaler.replan.trigger_inputs import TriggerInputs
from autoscaler.rollout.serving_group import ServingGroup
from autoscaler.state.controller_state import FullPlans
from autoscaler.state.replan_trigger import Trigger

_AGAIN_MS = 30_000
"""Time in ms after which a partly applied plan is planned again although nothing changed."""


def fire(news: TriggerInputs) -> Iterator[Trigger]:
    """One trigger per omitted part of an answer."""
    yield from news.replan


def waits_for_room(
    trigger: Trigger, groups: Iterable[ServingGroup], combos: Mapping[str, Combo]
) -> bool:
    """Whether the omitted part should be planned only after some groups have left. These groups
    make room for other models, and belong to the models of `trigger` or are in a pool of one of its
    combos."""
    yielding = [group for group in groups if group.exit.yields] if trigger.is_partly_applied else []
    if not yielding or not trigger.scope:
        return bool(yielding)
    known = (combo for combo in combos.values() if combo.model in trigger.scope)
    pools = {pool for combo in known for pool in combo.gpus_by_pool()}
    return any(
        group.model in trigger.scope or any(placed.pool in pools for placed in group.placed)
        for group in yielding
    )


def already_tried(
    trigger: Trigger, memory: FullPlans, groups: Iterable[ServingGroup], now_ms: int
) -> bool:
    """Whether the last plan had an equal reason and was made recently, and no group has changed its
    life-cycle state since."""
    if not trigger.is_partly_applied or trigger.why.kind not in memory.last.already_tried:
        return False
    if not memory.asked_ms or now_ms - memory.asked_ms[-1] >= _AGAIN_MS:
        return False
    return memory.last.positions_digest == group_positions(groups)


def group_positions(groups: Iterable[ServingGroup]) -> str:
    """Digest of the names and life-cycle states of all groups."""
    told = "\n".join(sorted(f"{group.name} {group.life}" for group in groups))
    return hashlib.sha256(told.encode()).hexdigest()[:16]
