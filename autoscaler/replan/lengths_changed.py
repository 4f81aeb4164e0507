"""Trigger: prompts became longer and answers shorter, or the reverse.

Additions keep the roles of all existing groups, so on a full pool only a full plan can respond.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoscaler.domain.reason import Reason
from autoscaler.replan.trigger_inputs import TriggerInputs
from autoscaler.state.replan_trigger import Trigger
from topics.reason_codes import ReasonCode

_LEAST = 1.1
"""Factor by which mean lengths must change; a smaller change rarely changes the plan."""


def fire(news: TriggerInputs) -> Iterator[Trigger]:
    """One trigger per model whose prompts and answers changed in opposite directions, by a tenth
    each, since the last full plan."""
    for model, view in news.views.items():
        was, now = news.state.full.last.lengths.get(model), view.state.estimate.lengths
        if was is None:
            continue
        longer = _moved(was.input_tokens, now.input_tokens)
        if longer * _moved(was.output_tokens, now.output_tokens) < 0:
            tokens = now.input_tokens, now.output_tokens, was.input_tokens, was.output_tokens
            yield Trigger((model,), Reason(ReasonCode.LENGTHS, model, quantities=tokens))


def _moved(was: float, now: float) -> int:
    """1 if `now` is longer, -1 if it is shorter, 0 if it is about equal."""
    if max(was, now) < _LEAST * min(was, now):
        return 0
    return 1 if now > was else -1
