"""Port: who spreads requests. First implementation: our gateways, by the routes topic."""

from __future__ import annotations

from typing import Protocol

from streams.ports.actuator import Records
from topics.records import Routes


class RouteSink(Protocol):
    """Carries routes to whatever stands in front of the engines."""

    def apply(self, routes: Routes) -> None:
        """Make `routes` those of their model; returns at once, a copy does no harm."""


class GatewayRoutes:
    """Our gateways: the routes are published for all of them to follow."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def apply(self, routes: Routes) -> None:
        """Publish them."""
        self._records.put(routes)


class WithheldRoutes:
    """Mode recommend: nothing leaves. withheld: how many routes would have."""

    def __init__(self) -> None:
        self.withheld = 0

    def apply(self, routes: Routes) -> None:
        """Count them."""
        self.withheld += 1
