"""Triggers that wait for a full plan: which of them are due, and the models that they concern.

If a plan is in progress or the rate limit (`rate_limit`) is reached, triggers wait, and one later
plan responds to all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from autoscaler.domain.combo import Combo
from autoscaler.domain.reason import Reason
from autoscaler.replan.trigger_inputs import TriggerInputs
from autoscaler.replan.triggers import fired
from autoscaler.rollout.serving_group import ServingGroup
from autoscaler.state.controller_state import FullPlans
from autoscaler.state.replan_trigger import Trigger
from topics.reason_codes import ReasonCode

_MOST_DUE = 50
"""Triggers that wait at the same time. More need no names, because one plan responds to all."""
_MORE = Trigger((), Reason(ReasonCode.MORE, "*"))  # stands for all triggers beyond the limit
_AGAIN_MS = 30_000
"""Time in ms after which a partly applied plan is planned again although nothing changed."""


def collect(news: TriggerInputs, due: tuple[Trigger, ...]) -> tuple[Trigger, ...]:
    """The waiting triggers and the triggers of this tick: one per (code, scope), with the latest
    figures."""
    found = {(trigger.why.code, trigger.scope): trigger for trigger in due}
    for trigger in fired(news):
        found[(trigger.why.code, trigger.scope)] = trigger
    more = found.pop((_MORE.why.code, _MORE.scope), None)
    kept = tuple(found.values())
    if more is None and len(kept) <= _MOST_DUE:
        return kept
    return (*kept[:_MOST_DUE], _MORE)


def declared_only(triggers: tuple[Trigger, ...], models: Collection[str]) -> tuple[Trigger, ...]:
    """`triggers` without models that are not declared. models: the declared models."""
    kept = (replace(t, scope=tuple(m for m in t.scope if m in models)) for t in triggers)
    return tuple(now for t, now in zip(triggers, kept, strict=True) if now.scope or not t.scope)


def limited_to(models: Collection[str], triggers: tuple[Trigger, ...]) -> tuple[Trigger, ...]:
    """`triggers` with their scopes restricted to `models`."""
    kept = (
        replace(t, scope=tuple(m for m in (t.scope or models) if m in models)) for t in triggers
    )
    return tuple(trigger for trigger in kept if trigger.scope)


def scope_of(triggers: tuple[Trigger, ...], models: tuple[str, ...]) -> tuple[str, ...]:
    """The models in the scope of `triggers`, in the order of `models`."""
    if any(not trigger.scope for trigger in triggers):
        return models
    named = {model for trigger in triggers for model in trigger.scope}
    return tuple(model for model in models if model in named)


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
