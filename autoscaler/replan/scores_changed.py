"""Trigger: the scores of a service's requests no longer match the planned thresholds."""

from __future__ import annotations

from collections.abc import Iterator

from autoscaler.domain.reason import Reason
from autoscaler.estimate.model_demand import UNKNOWN_DEMAND
from autoscaler.estimate.score_drift import has_drifted
from autoscaler.planning.planner_messages import Urgency
from autoscaler.replan.rate_limit import thresholds_may_move
from autoscaler.replan.trigger_inputs import TriggerInputs
from autoscaler.state.replan_trigger import Trigger
from topics.reason_codes import ReasonCode


def fire(news: TriggerInputs) -> Iterator[Trigger]:
    """One trigger, for the models of a service, for each service without planned thresholds and for
    each service whose requests moved between score classes since its last plan."""
    if Urgency.FULL in news.state.pending:
        return  # a plan in progress may already cover the change
    for route in news.cluster.routes:
        known = news.state.splits.get(route.name)
        if known is None or not known.target_cuts:
            yield Trigger(route.models, Reason(ReasonCode.NO_THRESHOLDS, route.name))
            continue
        if known.mix is None:  # unknown mix: the thresholds were restored from routes
            continue
        now = route.mix(news.demand.get(route.name, UNKNOWN_DEMAND).local_lengths.classes)
        window_s = news.cluster.policy.local_window_s
        if not thresholds_may_move(known.changed_ms, news.now_ms, True, window_s):
            continue
        if has_drifted(route, known.mix, now):
            yield Trigger(route.models, Reason(ReasonCode.SCORES, route.name))
