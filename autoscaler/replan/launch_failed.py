"""A launch failed or timed out: its node backs off, so something else must serve."""

from __future__ import annotations

from collections.abc import Iterator

from autoscaler.replan.trigger_inputs import News, Trigger


def fire(news: News) -> Iterator[Trigger]:
    """One trigger per failed launch."""
    for failure in news.failures:
        yield Trigger("launch", (failure.group.model,), f"launch failed on {failure.node}")
