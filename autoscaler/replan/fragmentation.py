"""Trigger: after a departure, the groups of a pool use more nodes than they fill.

The next full plan moves groups together and releases nodes, which are on the bill until then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from autoscaler.domain.cluster import Market
from autoscaler.domain.reason import Reason
from autoscaler.replan.trigger_inputs import TriggerInputs
from autoscaler.state.replan_trigger import Trigger
from topics.reason_codes import ReasonCode


def fire(news: TriggerInputs) -> Iterator[Trigger]:
    """One per rented pool in which a group left in this tick, for the models in that pool. Fires
    once per departure; if no group can move, the periodic plan tries again."""
    stay = {group.name for group in news.groups}
    gone = (group for group in news.state.groups if group.name not in stay)
    left = {placed.pool for group in gone for placed in group.placed}
    if not left:
        return
    placed = [(group.model, at) for group in news.groups for at in group.placed]
    gpus = Counter[str]()
    for _, at in placed:
        gpus[at.pool] += len(at.gpus)
    for pool in (p for p in news.cluster.pools if p.id in left and p.market is not Market.OWNED):
        nodes = len({at.node for _, at in placed if at.pool == pool.id})
        fewest = -(-gpus[pool.id] // pool.per_node)
        if nodes > fewest:
            models = tuple(sorted({model for model, at in placed if at.pool == pool.id}))
            why = Reason(ReasonCode.SCATTERED, pool.id, quantities=(nodes, fewest))
            yield Trigger(models, why)
