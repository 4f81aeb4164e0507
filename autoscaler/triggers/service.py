"""A declared service changed, came or went."""

from __future__ import annotations

from collections.abc import Iterator

from autoscaler.triggers.news import News, Trigger


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
            yield Trigger("service", (model,), f"{model} was changed")
    for model in before:
        if model not in now:
            yield Trigger("service", (), f"{model} was removed")
