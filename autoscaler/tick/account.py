"""The account of a fleet: its cost, and the requests that met their SLO.

A running controller, a replay and a page of either keep it by the same rules (docs/reference/
json.md, "Cost and attainment"):

- Cost is the bill of `autoscaler.serving.billing`, from reported statuses and accepted prices.
- A request counts when it ends: answered, failed or refused. It attained its SLO if it was answered
  within both limits, as gateways report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from autoscaler.domain.cluster import Cluster
from autoscaler.estimate.window_stats import NO_REQUESTS, EndedRequests
from autoscaler.rollout.supply import Supply
from autoscaler.serving.billing import Bill
from autoscaler.state.controller_state import ControllerState, Observation

_SETTLES_MS = 3_600_000
"""Time in ms after which the price of a past moment no longer changes."""


class AccountedTick(Protocol):
    """The part of a tick from which the account is kept."""

    @property
    def after(self) -> ControllerState: ...
    @property
    def observation(self) -> Observation: ...
    @property
    def cluster(self) -> Cluster: ...
    @property
    def now_ms(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals from `since_ms` on. usd: cost. requests: ended requests by declared model."""

    since_ms: int
    usd: float
    requests: Mapping[str, EndedRequests]

    @property
    def all_requests(self) -> EndedRequests:
        """Ended requests of all models."""
        return total(self.requests.values())


def total(each: Iterable[EndedRequests]) -> EndedRequests:
    """The sum of `each`."""
    known = list(each)
    return EndedRequests(sum(one.ended for one in known), sum(one.attained for one in known))


class Account:
    """Keeps totals from the first tick on."""

    def __init__(self) -> None:
        self._bill = Bill({}, 0)
        self._since_ms = self._settled_ms = 0
        self._seen: tuple[Cluster, Supply] | None = None
        self._prices: dict[str, float] = {}
        self._heard_ms: dict[str, int] = {}
        self._counted: dict[str, EndedRequests] = {}
        self._requests: dict[str, EndedRequests] = {}
        self._services: frozenset[str] = frozenset()

    def tick(self, done: AccountedTick) -> None:
        """Add one tick."""
        if not self._since_ms:
            self._since_ms = self._settled_ms = done.now_ms
            self._bill = Bill(done.cluster.prices_usd_per_h(), 0, done.now_ms / 1000.0)
            self._prices = done.cluster.prices_usd_per_h()
            self._counted = {m: one.outcomes for m, one in done.observation.demand.items()}
        self._reprice(done.cluster, done.after.supply, done.now_ms)
        for node, status in done.observation.statuses.items():
            if self._heard_ms.get(node) != status.at_ms:
                self._heard_ms[node] = status.at_ms
                self._bill.record(status)
        for model, demand in done.observation.demand.items():
            if demand.outcomes != self._counted.get(model, NO_REQUESTS):
                self._count(model, demand.outcomes)
        if done.now_ms > self._settled_ms + 2 * _SETTLES_MS:
            self._settled_ms = done.now_ms - _SETTLES_MS
            self._bill.settle(self._settled_ms / 1000.0)

    def totals(self) -> Totals:
        """The totals until the last tick."""
        return Totals(self._since_ms, self._bill.reported_usd(), dict(self._requests))

    def _count(self, model: str, now: EndedRequests) -> None:
        """Add what ended since the last tick. A counter that fell was restarted at 0."""
        before = self._counted.get(model, NO_REQUESTS)
        if now.ended < before.ended:
            before = NO_REQUESTS
        added = EndedRequests(now.ended - before.ended, now.attained - before.attained)
        self._counted[model] = now
        if model in self._services:
            return  # Its requests are also those of the models to which it routes.
        self._requests[model] = total((self._requests.get(model, NO_REQUESTS), added))

    def _reprice(self, cluster: Cluster, supply: Supply, now_ms: int) -> None:
        if self._seen is not None and self._seen[0] is cluster and self._seen[1] is supply:
            return
        self._seen = cluster, supply
        self._services = frozenset(route.name for route in cluster.routes)
        for pool in cluster.pools:
            good = supply.prices.get(pool.id)
            usd = good.usd_per_h if good else pool.price_usd_per_h
            if self._prices.get(pool.id) != usd:
                self._prices[pool.id] = usd
                self._bill.reprice(pool.id, usd, (good.observed_ms if good else now_ms) / 1000.0)
