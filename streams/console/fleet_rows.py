"""Rows of pools and nodes for the page: content, cost and state.

They show which models a node serves, and which instances start, drain or are lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoscaler.domain.cluster import Cluster, Pool
from autoscaler.rollout.supply import Supply
from autoscaler.state.controller_state import ControllerState
from streams.console.rounding import rounded
from topics.fleet import Assignment, InstanceState, Status

Row = dict[str, Any]

_RANK = (
    InstanceState.READY,
    InstanceState.SWITCHING,
    InstanceState.STARTING,
    InstanceState.DRAINING,
    InstanceState.STOPPING,
    InstanceState.ASLEEP,
    InstanceState.FAILED,
)
_WORDS = {
    InstanceState.READY: "serving",
    InstanceState.SWITCHING: "switching",
    InstanceState.STARTING: "starting",
    InstanceState.DRAINING: "draining",
    InstanceState.STOPPING: "draining",
    InstanceState.ASLEEP: "asleep",
    InstanceState.FAILED: "failed",
}


def pool_rows(cluster: Cluster, supply: Supply) -> dict[str, Row]:
    """For each pool id: its hardware, the cost of a node, and the number of available nodes."""
    return {pool.id: _pool_row(pool, supply) for pool in cluster.pools}


def _pool_row(pool: Pool, supply: Supply) -> Row:
    price, offer = supply.prices.get(pool.id), supply.offers.get(pool.id)
    aside = supply.aside.get(pool.id)
    return {
        "region": pool.region,
        "name": pool.name,
        "market": str(pool.market),
        "gpu": pool.gpu.name,
        "per_node": pool.per_node,
        "max": pool.max_nodes,
        "declared": rounded(pool.price_usd_per_h),
        "price": rounded(price.usd_per_h if price else pool.price_usd_per_h),
        "price_at": price.observed_ms if price else 0,
        "price_stale": bool(price and price.stale_usd_per_h),
        "aside": rounded(aside.usd_per_h) if aside else None,
        "offer": offer.nodes if offer else None,
        "offer_at": offer.observed_ms if offer else 0,
        "offer_stale": bool(offer and offer.stale),
    }


class NodeRows:
    """Computes the rows of all nodes. Only nodes with changed records are computed again."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Status | None, Assignment | None, bool, bool, Row]] = {}

    def rows(self, state: ControllerState, statuses: Mapping[str, Status]) -> dict[str, Row]:
        """Rows by node. A node with an assignment and without a status is being provisioned."""
        found: dict[str, Row] = {}
        known: dict[str, tuple[Status | None, Assignment | None, bool, bool, Row]] = {}
        waiting = (
            n for n, a in state.published.assignments.items() if a.instances and n not in statuses
        )
        for node in (*statuses, *waiting):
            status, desired = statuses.get(node), state.published.assignments.get(node)
            lost, silent = node in state.observed.lost_nodes, node in state.observed.silent_nodes
            before = self._known.get(node)
            if (
                before is not None
                and before[1] is desired
                and before[2:4] == (lost, silent)
                and _same(before[0], status)
            ):
                row = before[4]
            else:
                row = _node_row(status, desired, lost, silent)
            known[node] = status, desired, lost, silent, row
            found[node] = row
        self._known = known
        return found


def _same(a: Status | None, b: Status | None) -> bool:
    """Whether two statuses of a node give the same row. Most statuses differ
    only in load and time.
    """
    if a is b:
        return True
    if a is None or b is None or len(a.instances) != len(b.instances):
        return False
    if a.reclaim_ms != b.reclaim_ms or a.faults != b.faults:
        return False
    return all(
        one.state is other.state
        and one.instance == other.instance
        and one.phase == other.phase
        and one.restarts == other.restarts
        and one.reason == other.reason
        for one, other in zip(a.instances, b.instances, strict=True)
    )


def _node_row(status: Status | None, desired: Assignment | None, lost: bool, silent: bool) -> Row:
    """state: the condition of the node in one word. instances: model, phase, state, GPU indices,
    restarts and the reason of a failure."""
    if status is None:
        assert desired is not None  # noqa: S101  a node has at least one of both
        planned = [[i.model, i.phase, "starting", list(i.gpus), 0, ""] for i in desired.instances]
        return {"pool": desired.pool, "state": "provisioning", "reclaim": 0, "instances": planned,
                "faults": []}  # fmt: skip
    live = [seen for seen in status.instances if seen.state is not InstanceState.STOPPED]
    instances = [
        [one.model, one.phase, _WORDS[one.state], list(one.gpus), one.restarts, one.reason]
        for one in live
    ]
    if lost:
        word = "lost"
    elif silent:
        word = "silent"
    elif not live:
        word = "idle"
    else:
        word = _WORDS[min((one.state for one in live), key=_RANK.index)]
    return {
        "pool": status.pool,
        "state": word,
        "reclaim": status.reclaim_ms,
        "instances": instances,
        "faults": list(status.faults),
    }
