"""The events of a scenario as sentences for the view. Pure."""

from __future__ import annotations

from autoscaler.domain.cluster import Pool
from streams.tools.replay.demand_changes import DemandChange


def nodes_of(pool: Pool) -> str:
    """The nodes of a pool: "L40S spot nodes in eu-west"."""
    return f"{pool.gpu.name} {pool.market} nodes in {pool.region}"


def span(seconds: float) -> str:
    """A duration: "30 s", "5 min"."""
    return f"{seconds:.0f} s" if seconds < 60.0 else f"{seconds / 60.0:g} min"


def price(pool: Pool, before_usd: float, usd: float) -> str:
    """A price changed. Prices are in USD per node and hour."""
    verb = "rise" if usd > before_usd else "fall" if usd < before_usd else "stay"
    return f"{nodes_of(pool)} {verb} from {before_usd:.2f} to {usd:.2f} USD/h"


def free(pool: Pool, nodes: int) -> str:
    """The number of nodes that can be rented changed."""
    if not nodes:
        return f"no more {nodes_of(pool)} can be rented"
    return f"{nodes} more {nodes_of(pool)} can be rented"


def limit(pool: Pool, nodes: int) -> str:
    """The most nodes that can be rented, including the rented ones, changed."""
    if not nodes:
        return f"the cloud has no {nodes_of(pool)} any more"
    return f"the cloud has {nodes} {nodes_of(pool)}"


def notice(node: str, notice_s: float) -> str:
    """A node got a reclaim notice."""
    return f"{node} is reclaimed in {span(notice_s)}"


def gone(node: str) -> str:
    """A reclaimed node is gone."""
    return f"{node} is gone"


def lost(node: str) -> str:
    """A node disappeared without notice."""
    return f"{node} disappears without notice"


def launches_fail(pool: Pool, seconds: float) -> str:
    """Launches of a pool begin to fail."""
    return f"launches on {nodes_of(pool)} fail for {span(seconds)}"


def launches_work(pool: Pool) -> str:
    """Launches of a pool work again."""
    return f"launches on {nodes_of(pool)} work again"


def demand(change: DemandChange) -> str:
    """The demand changed."""
    span_s = (change.until_ms - change.from_ms) / 1000.0
    who = change.model or "all models"
    return f"demand for {who} is {change.factor:g} times the trace's for {span(span_s)}"


def demand_back(change: DemandChange) -> str:
    """A change of demand is over."""
    return f"demand for {change.model or 'all models'} is that of the trace again"
