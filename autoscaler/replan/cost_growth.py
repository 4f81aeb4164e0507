"""Trigger: additions raised the cost, so the whole fleet is planned again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from autoscaler.domain.cluster import Market
from autoscaler.domain.reason import Reason
from autoscaler.replan.trigger_inputs import TriggerInputs
from autoscaler.state.replan_trigger import Trigger
from topics.reason_codes import ReasonCode


def fire(news: TriggerInputs) -> Iterator[Trigger]:
    """A trigger if the cost of the used nodes has grown by more than `policy.ratio` since the last
    full plan. Both sums use the present prices, because price changes have a separate trigger."""
    planned = news.fleet.planned_nodes
    if planned is None or planned == news.fleet.nodes:
        return
    before, now = _usd_per_h(planned, news), _usd_per_h(news.fleet.nodes, news)
    if now > (1.0 + news.cluster.policy.ratio) * before:
        yield Trigger((), Reason(ReasonCode.BILL, "*", quantities=(now, before)))


def _usd_per_h(nodes: Mapping[str, int], news: TriggerInputs) -> float:
    prices = news.supply.prices_usd_per_h()
    pools = (p for p in news.cluster.pools if p.market is not Market.OWNED)
    return sum(nodes.get(p.id, 0) * prices.get(p.id, p.price_usd_per_h) for p in pools)
