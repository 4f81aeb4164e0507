"""Scripted events of a simulation: prices, availability, faults and changes of services.

Times are domain seconds after the start of the simulated controller.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autoscaler.domain.cluster import Service
from topics.alerts import Alert


@dataclass(frozen=True, slots=True)
class PriceChanged:
    """A node of `pool` has this price from now on, and the price feed publishes it."""

    at_s: float
    pool: str
    usd_per_node_h: float


@dataclass(frozen=True, slots=True)
class AvailabilityChanged:
    """`nodes` more nodes of `pool` can be rented, and the feed publishes this number. Launches on
    further nodes fail until nodes are released or until the next change."""

    at_s: float
    pool: str
    nodes: int


@dataclass(frozen=True, slots=True)
class NodesLimited:
    """At most `nodes` nodes of `pool` can be rented from now on, and the feed publishes the number
    that is still available.

    The newest rented nodes above the limit get a reclaim notice and are lost `notice_s` later.
    """

    at_s: float
    pool: str
    nodes: int
    notice_s: float = 120.0


@dataclass(frozen=True, slots=True)
class NodeLost:
    """The node disappears: its engines are gone, its reports stop, and it is no longer billed."""

    at_s: float
    node: str


@dataclass(frozen=True, slots=True)
class NodesLost:
    """The newest `nodes` rented nodes of `pool` disappear without notice until `until_s` (inf =
    for good). Of an owned pool, the first nodes disappear."""

    at_s: float
    pool: str
    nodes: int
    until_s: float = math.inf


@dataclass(frozen=True, slots=True)
class NodeReturned:
    """A lost node is up again, without instances, and applies the current assignment."""

    at_s: float
    node: str


@dataclass(frozen=True, slots=True)
class LaunchesFail:
    """Until `until_s`, processes launched on `where` (a node or a pool id) exit soon after their
    launch."""

    at_s: float
    where: str
    until_s: float


@dataclass(frozen=True, slots=True)
class ServiceChanged:
    """`service` replaces the declared service of its model."""

    at_s: float
    service: Service


@dataclass(frozen=True, slots=True)
class AlertRaised:
    """`alert` reaches the controller."""

    at_s: float
    alert: Alert


@dataclass(frozen=True, slots=True)
class GatewaySilent:
    """Telemetry of gateway number `index` does not reach the controller until `until_s`. The
    gateway continues to serve."""

    at_s: float
    index: int
    until_s: float


@dataclass(frozen=True, slots=True)
class PlannerDown:
    """The planner is down until `until_s`: plan requests get empty answers."""

    at_s: float
    until_s: float


ScriptEvent = (
    PriceChanged
    | AvailabilityChanged
    | NodesLimited
    | NodeLost
    | NodesLost
    | NodeReturned
    | LaunchesFail
    | ServiceChanged
    | AlertRaised
    | GatewaySilent
    | PlannerDown
)
