"""Trigger: after a group left, the other groups of its pool occupy more nodes than they need.

The next full plan moves groups together and releases nodes; until then these nodes cost money.
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
    """One trigger per rented pool that a group left in this tick, for the models in that pool. If
    no group can move now, the periodic plan tries again."""
    stay = {group.name for group in news.fleet.groups}
    gone = (group for group in news.state.groups if group.name not in stay)
    left = {placed.pool for group in gone for placed in group.placed}
    if not left:
        return
    placed = [(group.model, at) for group in news.fleet.groups for at in group.placed]
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
