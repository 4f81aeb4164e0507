"""Trigger: a price changed enough to affect the plan."""

from __future__ import annotations

from collections.abc import Iterator

from autoscaler.domain.reason import Reason
from autoscaler.replan.trigger_inputs import TriggerInputs
from autoscaler.state.replan_trigger import Trigger
from topics.reason_codes import ReasonCode


def fire(news: TriggerInputs) -> Iterator[Trigger]:
    """One trigger per pool whose price changed by more than `policy.ratio` since the last full
    plan."""
    planned = news.state.full.last.usd_per_h
    now = news.supply.prices_usd_per_h()
    for pool in news.cluster.pools:
        before = planned.get(pool.id, pool.price_usd_per_h)
        after = now.get(pool.id, pool.price_usd_per_h)
        if abs(after - before) > news.cluster.policy.ratio * before:
            yield Trigger((), Reason(ReasonCode.PRICE, pool.id, quantities=(after, before)))
