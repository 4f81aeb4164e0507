"""Trigger: a launch failed or timed out. Its node gets no launches for a while, so other capacity
must serve."""

from __future__ import annotations

from collections.abc import Iterator

from autoscaler.domain.reason import Reason
from autoscaler.replan.trigger_inputs import TriggerInputs
from autoscaler.state.replan_trigger import Trigger
from topics.reason_codes import ReasonCode


def fire(news: TriggerInputs) -> Iterator[Trigger]:
    """One trigger per failed launch."""
    for failure in news.fleet.failures:
        model = failure.group.model
        yield Trigger((model,), Reason(ReasonCode.LAUNCH_FAILED, model, (failure.node,)))
