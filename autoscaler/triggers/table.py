"""All triggers of a full plan, listed once.

A new trigger is one file with a `fire` and one line here. Triggers that come while a plan is made,
or faster than `limits` allow, wait and are answered together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from autoscaler.triggers import (
    alert,
    availability,
    bill,
    excess,
    launch,
    leftover,
    lengths,
    missed,
    mix,
    nodes,
    period,
    price,
    roles,
    scattered,
    scores,
    service,
)
from autoscaler.triggers.news import News, Trigger

Rule = Callable[[News], Iterator[Trigger]]

TRIGGERS: tuple[Rule, ...] = (
    period.fire,
    price.fire,
    bill.fire,
    availability.fire,
    nodes.fire,
    launch.fire,
    service.fire,
    alert.fire,
    missed.fire,
    mix.fire,
    lengths.fire,
    roles.fire,
    excess.fire,
    leftover.fire,
    scattered.fire,
    scores.fire,
)

_MOST_DUE = 50
_MORE = Trigger("more", (), "further reasons")  # in place of those beyond


def collect(news: News, due: tuple[Trigger, ...]) -> tuple[Trigger, ...]:
    """What waits, and what this tick's news adds to it; each (name, scope) once, with its latest
    words."""
    found = {(trigger.name, trigger.scope): trigger for trigger in due}
    for rule in TRIGGERS:
        for trigger in rule(news):
            found[(trigger.name, trigger.scope)] = trigger
    more = found.pop((_MORE.name, _MORE.scope), None)
    kept = tuple(found.values())
    if more is None and len(kept) <= _MOST_DUE:
        return kept
    return (*kept[:_MOST_DUE], _MORE)


def of_declared(triggers: tuple[Trigger, ...], models: Collection[str]) -> tuple[Trigger, ...]:
    """`triggers` without what concerns models that are not among `models` any more."""
    kept = (replace(t, scope=tuple(m for m in t.scope if m in models)) for t in triggers)
    return tuple(now for t, now in zip(triggers, kept, strict=True) if now.scope or not t.scope)


def limited_to(models: Collection[str], triggers: tuple[Trigger, ...]) -> tuple[Trigger, ...]:
    """`triggers` as far as they concern some of `models`."""
    kept = (
        replace(t, scope=tuple(m for m in (t.scope or models) if m in models)) for t in triggers
    )
    return tuple(trigger for trigger in kept if trigger.scope)


def scope_of(triggers: tuple[Trigger, ...], models: tuple[str, ...]) -> tuple[str, ...]:
    """The models that `triggers` concern together, in the order of `models`."""
    if any(not trigger.scope for trigger in triggers):
        return models
    named = {model for trigger in triggers for model in trigger.scope}
    return tuple(model for model in models if model in named)
