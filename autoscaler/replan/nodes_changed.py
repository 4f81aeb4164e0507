"""Trigger: a node was lost or returned, if the node is owned or had instances."""

from __future__ import annotations

from collections.abc import Iterator

from autoscaler.domain.reason import Reason
from autoscaler.replan.trigger_inputs import TriggerInputs
from autoscaler.state.replan_trigger import Trigger
from topics.reason_codes import ReasonCode

_NAMED = 3
"""Number of nodes in the reason of a trigger, which people read."""


def fire(news: TriggerInputs) -> Iterator[Trigger]:
    """One trigger for the nodes lost, and one for the nodes that returned, since the last tick."""
    for nodes, code in (
        (news.fleet.lost - news.state.observed.lost_nodes, ReasonCode.NODE_LOST),
        (news.state.observed.lost_nodes - news.fleet.lost, ReasonCode.NODE_BACK),
    ):
        if nodes:
            named = tuple(sorted(nodes)[:_NAMED])
            yield Trigger((), Reason(code, "*", named, (len(nodes),)))
