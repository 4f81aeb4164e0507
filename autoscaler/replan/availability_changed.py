"""Trigger: a pool offers nodes again, offers none, or offers considerably more or fewer."""

from __future__ import annotations

from collections.abc import Iterator

from autoscaler.domain.reason import Reason
from autoscaler.replan.trigger_inputs import TriggerInputs
from autoscaler.state.replan_trigger import Trigger
from topics.reason_codes import ReasonCode


def fire(news: TriggerInputs) -> Iterator[Trigger]:
    """One trigger per pool whose offer appeared, ran out, or changed by more than
    `policy.ratio`."""
    ratio = news.cluster.policy.ratio
    for pool in news.cluster.pools:
        old, new = news.state.supply.offers.get(pool.id), news.supply.offers.get(pool.id)
        if new is None:
            continue
        before = pool.max_nodes if old is None else old.nodes
        if (before > 0) != (new.nodes > 0) or abs(new.nodes - before) > ratio * before:
            nodes = new.nodes, before
            yield Trigger((), Reason(ReasonCode.AVAILABILITY, pool.id, quantities=nodes))
