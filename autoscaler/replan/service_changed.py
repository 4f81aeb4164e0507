"""A declared service changed, came or went."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from autoscaler.domain.cluster import Service
from autoscaler.replan.trigger_inputs import News, Trigger


def fire(news: News) -> Iterator[Trigger]:
    """What is declared now against what was declared at the last tick."""
    before = news.state.services
    if not before:
        return
    now = {service.model: service for service in news.cluster.services}
    for model, service in now.items():
        if model not in before:
            yield Trigger("service", (model,), f"{model} was added")
        elif before[model] != service:
            yield Trigger("service", (model,), f"{model} {_what(before[model], service)}")
    for model in before:
        if model not in now:
            yield Trigger("service", (), f"{model} was removed")


def _what(before: Service, now: Service) -> str:
    """What changed, in words where it is the mode or the floor alone."""
    # Not by `replace`: an old value may not go with a new one (a floor above a ceiling).
    names = (own.name for own in fields(now))
    changed = {name for name in names if getattr(before, name) != getattr(now, name)}
    if changed == {"mode"}:
        return f"goes from mode {before.mode} to {now.mode}"
    if changed == {"min_instances"}:
        return f"has a floor of {now.min_instances} instead of {before.min_instances}"
    return "was changed"
