"""What happens to supply and fleet in a simulation, by the clock.

Owns the values of a script. Times are domain seconds on the simulation's own axis, on which its
controller starts at 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.domain.cluster import Service
from topics.alerts import Alert


@dataclass(frozen=True, slots=True)
class PriceChanged:
    """A node of `pool` costs this from now on, and the price feed says so."""

    at_s: float
    pool: str
    usd_per_node_h: float


@dataclass(frozen=True, slots=True)
class AvailabilityChanged:
    """`nodes` further nodes of `pool` can be rented, and the feed says so. Launches on more nodes
    than that fail, until nodes are given back or the next change."""

    at_s: float
    pool: str
    nodes: int


@dataclass(frozen=True, slots=True)
class NodesLimited:
    """At most `nodes` nodes of `pool` can be held from now on, and the feed says how many more can
    be had. Of those that are held the newest above that get a reclaim notice and are taken away
    `notice_s` later."""

    at_s: float
    pool: str
    nodes: int
    notice_s: float = 120.0


@dataclass(frozen=True, slots=True)
class NodeLost:
    """The node vanishes: its engines are gone, it says nothing any more, nobody bills it."""

    at_s: float
    node: str


@dataclass(frozen=True, slots=True)
class NodeBack:
    """A lost node is there again, empty; it takes up the assignment of that moment."""

    at_s: float
    node: str


@dataclass(frozen=True, slots=True)
class LaunchesFail:
    """Processes that are launched on `where` (a node or a pool id) end soon, until `until_s`."""

    at_s: float
    where: str
    until_s: float


@dataclass(frozen=True, slots=True)
class ServiceChanged:
    """A model's declared service is another one from now on."""

    at_s: float
    service: Service


@dataclass(frozen=True, slots=True)
class AlertRaised:
    """`alert` reaches the controller."""

    at_s: float
    alert: Alert


@dataclass(frozen=True, slots=True)
class GatewaySilent:
    """No telemetry of gateway number `index` reaches the controller until `until_s`; it serves."""

    at_s: float
    index: int
    until_s: float


@dataclass(frozen=True, slots=True)
class SolverAway:
    """The solver process is away until `until_s`: requests come back unanswered."""

    at_s: float
    until_s: float


Happening = (
    PriceChanged
    | AvailabilityChanged
    | NodesLimited
    | NodeLost
    | NodeBack
    | LaunchesFail
    | ServiceChanged
    | AlertRaised
    | GatewaySilent
    | SolverAway
)
