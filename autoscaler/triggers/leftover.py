"""A part of the last answer was left out because it no longer fitted, or additions alone were not
enough: then others have to make room, so all models are planned."""

from __future__ import annotations

from collections.abc import Iterator

from autoscaler.triggers.news import News, Trigger


def fire(news: News) -> Iterator[Trigger]:
    """One trigger per model and reason."""
    for model, why in news.replan:
        yield Trigger("leftover", (model,) if model else (), why)
