"""Requests turned: their prompts became longer and their answers shorter, or the other way round.

Additions keep the roles of all that runs, so on a full pool only a full plan can answer this.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoscaler.triggers.news import News, Trigger


def fire(news: News) -> Iterator[Trigger]:
    """Models whose lengths to plan at moved in opposite directions in this tick."""
    for model, view in news.views.items():
        before = news.state.models.get(model)
        if before is None:
            continue
        was, now = before.lengths, view.state.lengths
        longer = now.input_tokens - was.input_tokens
        if longer * (now.output_tokens - was.output_tokens) < 0.0:
            why = (
                f"requests of {model} turned to {now.input_tokens:.0f} tokens in and "
                f"{now.output_tokens:.0f} out (from {was.input_tokens:.0f} and "
                f"{was.output_tokens:.0f})"
            )
            yield Trigger("lengths", (model,), why)
