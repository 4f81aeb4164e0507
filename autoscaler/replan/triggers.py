"""All triggers of a full plan, in one list.

A new trigger is one file with a `fire` and one line in this file, or an extension. If a plan is in
progress or the rate limit (`rate_limit`) is reached, triggers wait, and one later plan responds to
all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from autoscaler.domain.reason import Reason
from autoscaler.replan import (
    alert_fired,
    availability_changed,
    excess_capacity,
    fragmentation,
    launch_failed,
    lengths_changed,
    mix_changed,
    nodes_changed,
    period_elapsed,
    price_changed,
    scores_changed,
    service_changed,
    slo_missed,
    switchable_roles_changed,
    unapplied_plan,
)
from autoscaler.replan.trigger_inputs import TriggerInputs
from autoscaler.state.replan_trigger import Trigger
from topics.extensions import Group, call, extensions
from topics.reason_codes import ReasonCode

Rule = Callable[[TriggerInputs], Iterator[Trigger]]

TRIGGERS: tuple[Rule, ...] = (
    period_elapsed.fire,
    price_changed.fire,
    availability_changed.fire,
    nodes_changed.fire,
    launch_failed.fire,
    service_changed.fire,
    alert_fired.fire,
    slo_missed.fire,
    mix_changed.fire,
    lengths_changed.fire,
    switchable_roles_changed.fire,
    excess_capacity.fire,
    unapplied_plan.fire,
    fragmentation.fire,
    scores_changed.fire,
)

_MOST_DUE = 50
"""Triggers that wait at the same time. More need no names, because one plan responds to all."""
_MORE = Trigger((), Reason(ReasonCode.MORE, "*"))  # stands for all triggers beyond the limit


def collect(news: TriggerInputs, due: tuple[Trigger, ...]) -> tuple[Trigger, ...]:
    """The waiting triggers and the triggers of this tick: one per (code, scope), with the latest
    figures."""
    found = {(trigger.why.code, trigger.scope): trigger for trigger in due}
    for trigger in (*(one for rule in TRIGGERS for one in rule(news)), *_of_extensions(news)):
        found[(trigger.why.code, trigger.scope)] = trigger
    more = found.pop((_MORE.why.code, _MORE.scope), None)
    kept = tuple(found.values())
    if more is None and len(kept) <= _MOST_DUE:
        return kept
    return (*kept[:_MOST_DUE], _MORE)


def _of_extensions(news: TriggerInputs) -> Iterator[Trigger]:
    """The triggers of installed packages."""
    for extension in extensions(Group.TRIGGERS):
        found: tuple[object, ...] = call(extension, lambda fire: tuple(fire(news)), ())
        yield from (one for one in found if isinstance(one, Trigger))


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
