"""Trigger: a declared service was changed, added or removed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from autoscaler.domain.cluster import Service
from autoscaler.domain.reason import Reason
from autoscaler.replan.trigger_inputs import TriggerInputs
from autoscaler.state.replan_trigger import Trigger
from topics.reason_codes import ReasonCode


def fire(news: TriggerInputs) -> Iterator[Trigger]:
    """One trigger per service that differs from its declaration at the last tick."""
    before = news.state.declared.services
    if not before:
        return
    now = {service.model: service for service in news.cluster.services}
    for model, service in now.items():
        if model not in before:
            yield Trigger((model,), Reason(ReasonCode.SERVICE_ADDED, model))
        elif before[model] != service:
            yield Trigger((model,), _changed(before[model], service))
    for model in before:
        if model not in now:
            yield Trigger((), Reason(ReasonCode.SERVICE_REMOVED, model))


def _changed(before: Service, now: Service) -> Reason:
    """The reason for a changed service. It names the mode or the floor if only that changed."""
    # Setting one old value in the new service fails if the two contradict (e.g. a floor above a
    # ceiling).
    names = (own.name for own in fields(now))
    changed = {name for name in names if getattr(before, name) != getattr(now, name)}
    if changed == {"mode"}:
        return Reason(ReasonCode.SERVICE_MODE, now.model, (before.mode, now.mode))
    if changed == {"min_instances"}:
        floors = now.min_instances, before.min_instances
        return Reason(ReasonCode.SERVICE_FLOOR, now.model, quantities=floors)
    return Reason(ReasonCode.SERVICE_CHANGED, now.model)
