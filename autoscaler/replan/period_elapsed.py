"""Trigger: the replan period has passed. Small changes since the last plan add up. A new plan with
little gain changes nothing, because its objective includes a price for transitions.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoscaler.domain.reason import Reason
from autoscaler.replan.trigger_inputs import TriggerInputs
from autoscaler.state.replan_trigger import Trigger
from topics.reason_codes import ReasonCode


def fire(news: TriggerInputs) -> Iterator[Trigger]:
    """A trigger every `policy.replan_every_s`, counted from the last request for a full plan."""
    every_s = news.cluster.policy.replan_every_s
    last_ms = max((news.state.term.started_ms, *news.state.full.asked_ms))
    if news.now_ms - last_ms >= every_s * 1000:
        yield Trigger((), Reason(ReasonCode.PERIOD, "*", quantities=(every_s,)))
