"""SLOs were missed for a while at a load that was planned for: capacity was derated."""

from __future__ import annotations

from collections.abc import Iterator

from autoscaler.replan.trigger_inputs import News, Trigger
from autoscaler.sizing.capacity_derating import share_attained


def fire(news: News) -> Iterator[Trigger]:
    """Models whose capacity was derated further in this tick."""
    for model, view in news.views.items():
        before = news.state.models.get(model)
        if before is not None and view.state.derate < before.derate:
            share, requests = share_attained(view)
            why = f"only {share:.0%} of {requests} {model} requests met the SLO"
            yield Trigger("missed", (model,), why)
