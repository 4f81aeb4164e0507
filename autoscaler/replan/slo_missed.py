"""Trigger: capacity was derated, because SLOs were missed at a planned load or engines are slow."""

from __future__ import annotations

from collections.abc import Iterator

from autoscaler.domain.reason import Reason
from autoscaler.replan.trigger_inputs import TriggerInputs
from autoscaler.sizing.capacity_derating import share_attained
from autoscaler.state.replan_trigger import Trigger
from topics.reason_codes import ReasonCode


def fire(news: TriggerInputs) -> Iterator[Trigger]:
    """One trigger per model whose capacity was derated further in this tick."""
    for model, view in news.views.items():
        before = news.state.models.get(model)
        if before is None or view.state.capacity.derate >= before.capacity.derate:
            continue
        why = view.state.target.why
        if why is None or why.code is not ReasonCode.SLOW_ENGINES:
            why = Reason(ReasonCode.SLO_MISSED, model, quantities=share_attained(view))
        yield Trigger((model,), why)
