"""Trigger: a lasting excess lowered a target so far that an instance can be removed."""

from __future__ import annotations

from collections.abc import Iterator

from autoscaler.domain.reason import Reason
from autoscaler.replan.trigger_inputs import TriggerInputs
from autoscaler.state.replan_trigger import Trigger
from topics.reason_codes import ReasonCode


def fire(news: TriggerInputs) -> Iterator[Trigger]:
    """One trigger per model whose target fell below its planned capacity by at least one
    instance."""
    for model, view in news.views.items():
        before = news.state.models.get(model)
        if before is None or view.state.target.req_per_s >= before.target.req_per_s:
            continue
        spare = view.planned_req_per_s - view.state.target.req_per_s
        smallest = min((combo.req_per_s for combo in view.serving.ready), default=0.0)
        if (
            view.serving.ready
            and spare >= smallest * view.service.utilization * view.state.capacity.derate
        ):
            yield Trigger((model,), Reason(ReasonCode.EXCESS, model))
