"""Apply the events of a scenario to the simulated nodes and feeds of a run, as their times come.

Pure: times are arguments. The caller publishes the feeds' records and writes the faults for the
executors. The events mean the same as in a simulation (`autoscaler.simulation.simulator`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from autoscaler.domain.cluster import Pool
from autoscaler.serving.billing import Bill
from autoscaler.simulation.supply_feeds import SupplyFeeds
from autoscaler.simulation.supply_script import (
    AvailabilityChanged,
    LaunchesFail,
    NodesLimited,
    NodesLost,
    PriceChanged,
)
from streams.tools.up import scenario_words
from streams.tools.up.event_log import Event
from streams.tools.up.scenario_file import DemandChanged, ScenarioEvent
from topics.supply import Availability, Price

_NODE_RETURN_S = 300.0
"""Domain s after which the machine of a reclaimed node can be rented again."""
_REFRESH_S = 300.0
"""Domain s between two publications of an unchanged feed, so that it does not count as silent."""


@dataclass(slots=True)
class Step:
    """The result of one step. lines: for the view. lost: nodes that are gone. faults: whether
    the executors' faults changed."""

    lines: list[Event] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    faults: bool = False


class ScenarioScript:
    """The script of one run. bill: the run's bill, which tells the rented nodes."""

    def __init__(self, events: Iterable[ScenarioEvent], pools: Sequence[Pool], bill: Bill) -> None:
        self._waiting = sorted(events, key=lambda one: one.at_s)
        self._pools = {pool.id: pool for pool in pools}
        self._prices = {pool.id: pool.price_usd_per_h for pool in pools}
        self._bill = bill
        self._feeds = SupplyFeeds(bill)
        self._reclaim_ms: dict[str, int] = {}
        self._lost_until_ms: dict[str, float] = {}
        self._failing_until_ms: dict[str, float] = {}
        self._demand_until_ms: list[tuple[float, DemandChanged]] = []
        self._refreshed_ms = 0

    def step(self, script_s: float, now_ms: int) -> Step:
        """Apply the events until second `script_s` of the trace. Before the trace begins, only
        events of second 0 apply. now_ms: domain time."""
        done = Step()
        self._end_faults(now_ms, done)
        while self._waiting and self._waiting[0].at_s <= max(0.0, script_s):
            self._apply(self._waiting.pop(0), now_ms, done)
        if now_ms - self._refreshed_ms >= 1000.0 * _REFRESH_S:
            self._refreshed_ms = now_ms
            self._feeds.refresh(now_ms)
        return done

    def records(self) -> list[Price | Availability]:
        """The current records of the feeds."""
        return [*self._feeds.prices.values(), *self._feeds.availability.values()]

    def faults(self) -> Mapping[str, object]:
        """The faults in force, as `executors.node.scripted_faults` reads them."""
        return {
            "reclaim_ms": dict(self._reclaim_ms),
            "lost": sorted(self._lost_until_ms),
            "failing": sorted(self._failing_until_ms),
        }

    def _end_faults(self, now_ms: int, done: Step) -> None:
        """Take reclaimed nodes away, and end the faults whose time is over."""
        for node in [node for node, at_ms in self._reclaim_ms.items() if at_ms <= now_ms]:
            del self._reclaim_ms[node]
            self._lose(node, now_ms + 1000.0 * _NODE_RETURN_S, done)
            done.lines.append(_event(now_ms, scenario_words.gone(node)))
        for node in [node for node, at_ms in self._lost_until_ms.items() if at_ms <= now_ms]:
            del self._lost_until_ms[node]
            done.faults = True
        for pool in [pool for pool, at_ms in self._failing_until_ms.items() if at_ms <= now_ms]:
            del self._failing_until_ms[pool]
            done.faults = True
            text = scenario_words.launches_work(self._pools[pool])
            done.lines.append(_event(now_ms, text))
        for ended in [one for one in self._demand_until_ms if one[0] <= now_ms]:
            self._demand_until_ms.remove(ended)
            done.lines.append(_event(now_ms, scenario_words.demand_back(ended[1].change)))

    def _lose(self, node: str, until_ms: float, done: Step) -> None:
        self._lost_until_ms[node] = until_ms
        done.lost.append(node)
        done.faults = True

    def _apply(self, event: ScenarioEvent, now_ms: int, done: Step) -> None:
        text = ""
        match event:
            case PriceChanged(_, pool, usd):
                text = scenario_words.price(self._pools[pool], self._prices[pool], usd)
                self._prices[pool] = usd
                self._feeds.set_price(pool, usd, now_ms)
            case AvailabilityChanged(_, pool, nodes):
                self._feeds.set_free(pool, nodes, now_ms)
                text = scenario_words.free(self._pools[pool], nodes)
            case NodesLimited(_, pool, nodes, notice_s):
                text = scenario_words.limit(self._pools[pool], nodes)
                done.lines.append(_event(now_ms, text))
                self._reclaim(pool, nodes, notice_s, now_ms, done)
                text = ""
                self._feeds.set_limit(pool, nodes, now_ms)
            case LaunchesFail(at_s, where, until_s):
                self._failing_until_ms[where] = now_ms + 1000.0 * (until_s - at_s)
                done.faults = True
                text = scenario_words.launches_fail(self._pools[where], until_s - at_s)
            case NodesLost(at_s, pool, nodes, until_s):
                for node in self._in_use(pool)[:nodes]:
                    self._lose(node, now_ms + 1000.0 * (until_s - at_s), done)
                    done.lines.append(_event(now_ms, scenario_words.lost(node), bad=True))
            case DemandChanged(_, change):
                text = scenario_words.demand(change)
                span_ms = change.until_ms - change.from_ms
                if math.isfinite(span_ms):
                    self._demand_until_ms.append((now_ms + span_ms, event))
        if text:
            done.lines.append(_event(now_ms, text))

    def _in_use(self, pool_id: str) -> list[str]:
        """The nodes of the pool that may be lost, in this order."""
        nodes = self._feeds.in_use(self._pools[pool_id])
        return [node for node in nodes if node not in self._lost_until_ms]

    def _reclaim(self, pool: str, nodes: int, notice_s: float, now_ms: int, done: Step) -> None:
        """Give the newest nodes above the number `nodes` a notice."""
        rented = [node for node in self._in_use(pool) if node not in self._reclaim_ms]
        for node in rented[: max(0, len(rented) - nodes)]:
            self._reclaim_ms[node] = now_ms + int(1000.0 * notice_s)
            done.faults = True
            done.lines.append(_event(now_ms, scenario_words.notice(node, notice_s), bad=True))


def _event(at_ms: int, text: str, bad: bool = False) -> Event:
    return Event(at_ms, text, bad, scripted=True)
