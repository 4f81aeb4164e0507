"""Port: who spreads requests. First implementation: our gateways, by the routes topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from streams.ports.actuator import Records
from streams.ports.seal import Seal
from topics.records import Routes


class RouteSink(Protocol):
    """Carries routes to whatever stands in front of the engines."""

    def apply(self, routes: Routes) -> None:
        """Make `routes` those of their model; returns at once, a copy does no harm."""


class GatewayRoutes:
    """Our gateways: the routes are published for all of them to follow.

    acting: whether anything may be changed now; while it says no, routes are withheld.
    seal: dates and signs them.
    """

    def __init__(self, records: Records, acting: Callable[[], bool], seal: Seal) -> None:
        self._records = records
        self._acting = acting
        self._seal = seal

    def apply(self, routes: Routes) -> None:
        """Publish them."""
        if self._acting():
            self._records.put(self._seal(routes))
