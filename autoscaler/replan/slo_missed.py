"""Trigger: capacity was derated, because SLOs were missed at a planned load or engines are slow."""

from __future__ import annotations

from collections.abc import Iterator

from autoscaler.domain.reason import Reason
from autoscaler.replan.trigger_inputs import TriggerInputs
from autoscaler.sizing.slo_misses import share_attained
from autoscaler.state.replan_trigger import Trigger
from topics.reason_codes import ReasonCode


def fire(news: TriggerInputs) -> Iterator[Trigger]:
    """One trigger per model whose capacity was derated further in this tick."""
    for model, view in news.views.items():
        before = news.state.models.get(model)
        if before is None or view.state.capacity.derate >= before.capacity.derate:
            continue
        if view.state.capacity.derated_ms == before.capacity.derated_ms:
            continue  # a new GPU type has no part in a gain
        why = Reason(ReasonCode.SLO_MISSED, model, quantities=share_attained(view))
        if (slowdown := view.state.capacity.slowdown) > 1.0:
            why = Reason(ReasonCode.SLOW_ENGINES, model, quantities=(slowdown,))
        yield Trigger((model,), why)
