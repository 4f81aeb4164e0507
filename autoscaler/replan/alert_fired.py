"""Trigger: an alert fires. A resolved alert triggers nothing, because it may only mean that an
exporter died."""

from __future__ import annotations

from collections.abc import Iterator

from autoscaler.domain.reason import Reason
from autoscaler.estimate.engine_view import EngineView
from autoscaler.replan.trigger_inputs import TriggerInputs
from autoscaler.state.replan_trigger import Trigger
from topics.reason_codes import ReasonCode

_NAMED = 3
"""Number of engine reports in the reason of a trigger, which people read."""


def fire(news: TriggerInputs) -> Iterator[Trigger]:
    """One trigger per firing alert, for the models that the alert names."""
    known = {service.model for service in news.cluster.services}
    for alert in news.alerts:
        if alert.state != "firing":
            continue
        scope = tuple(model for model in alert.models if model in known)
        if scope or not alert.models:
            views = [_view(m, news.engines[m]) for m in scope if m in news.engines]
            why = Reason(ReasonCode.ALERT, alert.name, because=tuple(views[:_NAMED]))
            yield Trigger(scope, why)


def _view(model: str, view: EngineView) -> Reason:
    seen = view.running, view.waiting
    return Reason(ReasonCode.ENGINES_SEEN, model, quantities=seen, quoted=view.error)
