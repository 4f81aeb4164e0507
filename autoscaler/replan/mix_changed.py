"""Trigger: the mix of requests shifted, between types of a model or between models.

Two kinds of plans depend on the mix: plans in budget mode, because the mix determines how the
budget is divided, and plans of component models, because of their paths and cells.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoscaler.domain.reason import Reason
from autoscaler.estimate.workload_mix import MIN_SHIFT, total_variation
from autoscaler.planning.planner_messages import Urgency
from autoscaler.replan.trigger_inputs import TriggerInputs
from autoscaler.state.replan_trigger import Trigger
from topics.reason_codes import ReasonCode

_MODELS = 2.0
"""Shares of models must change by this multiple of the change of types that counts, because all
models are planned again."""


def fire(news: TriggerInputs) -> Iterator[Trigger]:
    """One trigger per model whose type shares changed in this tick, and one for all models if their
    shares of all requests changed since the last plan."""
    for model, view in news.views.items():
        before = news.state.models.get(model)
        if (
            before is not None
            and before.estimate.mix
            and view.state.estimate.mix not in ((), before.estimate.mix)
        ):
            old = dict(before.estimate.mix)
            name, share = max(
                view.state.estimate.mix, key=lambda one: one[1] - old.get(one[0], 0.0)
            )
            shares = share, old.get(name, 0.0)
            why = Reason(ReasonCode.TYPE_MIX, model, (name,), shares)
            # All models share a budget; a component model is planned alone.
            yield Trigger(() if news.cluster.policy.spends_budget else (model,), why)
    if not news.cluster.policy.spends_budget:
        return
    planned = {
        m: demand.req_per_s for m, demand in news.state.evaluated.demands.items() if m in news.views
    }
    total = sum(planned.values())
    if Urgency.FULL in news.state.pending or len(planned) < 2 or total <= 0.0:
        return
    now = {
        m: news.views[m].state.target.req_per_s / news.views[m].state.capacity.derate
        for m in planned
    }
    wanted = sum(now.values())
    if wanted <= 0.0:
        return
    then = {m: rate / total for m, rate in planned.items()}
    today = {m: rate / wanted for m, rate in now.items()}
    if total_variation(then, today) > _MODELS * MIN_SHIFT:
        model = max(today, key=lambda m: today[m] - then[m])
        shares = today[model], then[model]
        yield Trigger((), Reason(ReasonCode.MODEL_MIX, model, quantities=shares))
