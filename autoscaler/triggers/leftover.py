"""A part of the last answer was left out because it no longer fitted."""

from __future__ import annotations

from collections.abc import Iterator

from autoscaler.triggers.news import News, Trigger


def fire(news: News) -> Iterator[Trigger]:
    """One trigger per model and reason."""
    for model, why in news.replan:
        yield Trigger("leftover", (model,), f"{model}: {why}")
