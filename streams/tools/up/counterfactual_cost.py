"""The cost of other ways to serve the demand of a run.

There are three comparisons: one GPU type only, each model planned alone, and all models planned
together. All use the same planner, prices, SLOs, spot shares and guarantees
(docs/how-to/read-a-run.md describes them). Pure; the caller's clock limits the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.workload import Demand
from autoscaler.performance.profile import Profile
from autoscaler.performance.profile_sources import cluster_profile
from autoscaler.planning.fleet_comparison import FleetComparison, FleetCost, OutOfTime
from streams.tools.up.observed_demand import MINUTE_MS, DemandSeen
from streams.tools.up.run_state import Picture
from streams.tools.up.run_story import TOGETHER


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a run. hours: the billed time of its nodes. demands: the demands of its busiest
    minute."""

    hours: float
    demands: tuple[Demand, ...]


@dataclass(frozen=True, slots=True)
class Otherwise:
    """One comparison. what: its name. usd: cost of the whole run.

    unserved: share of the demand that is not served, over all windows. detail: the chosen GPU type,
    if there is one.
    """

    what: str
    usd: float
    unserved: float
    detail: str = ""

    def as_json(self) -> dict[str, Any]:
        """The comparison as an entry of the summary."""
        found = {"what": self.what, "usd": round(self.usd, 4), "unserved": round(self.unserved, 4)}
        return {**found, "gpu": self.detail} if self.detail else found


def compare(
    cluster: Cluster,
    picture: Picture,
    until_ms: int,
    elapsed_s: Callable[[], float],
    limit_s: float,
) -> Iterator[Otherwise]:
    """Yields the comparisons for the demand in `picture`, one by one, until `limit_s`.

    until_ms: domain time of the run's end, when billing stopped.
    """
    from_ms, every_s = picture.first_launch_ms, cluster.policy.replan_every_s
    stretches = windows(picture.demand, from_ms, until_ms, every_s)
    comparisons = Comparisons(cluster, cluster_profile(cluster), elapsed_s, limit_s)
    yield from comparisons.all(stretches)


def windows(seen: DemandSeen, from_ms: int, until_ms: int, every_s: float) -> list[Window]:
    """The billed time cut into windows of `every_s`, each with its busiest minute.

    The first window begins at `from_ms`, when the first node was started. For a window without
    requests, only the models' minimums are planned.
    """
    minutes = seen.minutes()
    if not minutes or until_ms <= from_ms:
        return []
    step = max(1, round(every_s * 1000.0 / MINUTE_MS))
    begins = range(minutes[0], until_ms // MINUTE_MS + 1, step)
    found = []
    for index, begin in enumerate(begins):
        start_ms = from_ms if index == 0 else begin * MINUTE_MS
        end_ms = min(until_ms, (begin + step) * MINUTE_MS)
        hours = (end_ms - start_ms) / 3_600_000.0
        if hours > 0.0:
            found.append(Window(hours, seen.peak(range(begin, begin + step))))
    return found


class Comparisons:
    """Plans for the observed demand. elapsed_s: a clock from 0. limit_s: the time limit."""

    def __init__(
        self, cluster: Cluster, profile: Profile, elapsed_s: Callable[[], float], limit_s: float
    ) -> None:
        self._models = len(cluster.services)
        self._fleets = FleetComparison(cluster, profile, elapsed_s, limit_s)

    def all(self, stretches: Sequence[Window]) -> Iterator[Otherwise]:
        """Yields the comparisons one by one, until the time limit."""
        if not stretches:
            return
        try:
            one = self.one_gpu_type(stretches)
            if one is not None:
                yield one
            if self._models > 1:
                yield self.each_model_alone(stretches)
                yield self.all_models_together(stretches)
        except OutOfTime:
            return

    def one_gpu_type(self, stretches: Sequence[Window]) -> Otherwise | None:
        """The best single GPU type to rent, planned again for each window. None if at most one type
        can be rented.

        Types are compared by the number of models that fit, then by unserved demand, then by cost.
        Owned nodes stay, because they cost the same in every comparison.
        """
        names = self._fleets.gpu_types
        if len(names) < 2:
            return None
        what = "one rented GPU type" if self._fleets.has_owned_nodes else "one GPU type"
        found = []
        for name in names:
            costs = [self._fleets.on_one_type(name, window.demands) for window in stretches]
            homeless = max(cost.homeless for cost in costs)
            found.append((homeless, _over(stretches, costs, what, name)))
        return min(found, key=lambda one: (one[0], round(one[1].unserved, 3), one[1].usd))[1]

    def each_model_alone(self, stretches: Sequence[Window]) -> Otherwise:
        """Plan one model after the other, by priority, on separate nodes."""
        costs = [self._fleets.each_alone(window.demands) for window in stretches]
        return _over(stretches, costs, "each model alone")

    def all_models_together(self, stretches: Sequence[Window]) -> Otherwise:
        """The declared cluster, planned again for each window as in the other comparisons."""
        costs = [self._fleets.together(window.demands) for window in stretches]
        return _over(stretches, costs, TOGETHER)


def _over(
    stretches: Sequence[Window], costs: Sequence[FleetCost], what: str, detail: str = ""
) -> Otherwise:
    """The comparison `what` over all windows, from its cost in each window."""
    pairs = list(zip(stretches, costs, strict=True))
    usd = sum(cost.usd_per_h * window.hours for window, cost in pairs)
    missing = sum(cost.unserved_req_per_s * window.hours for window, cost in pairs)
    asked = sum(_total_req_per_s(window.demands) * window.hours for window in stretches)
    return Otherwise(what, usd, missing / asked if asked else 0.0, detail)


def _total_req_per_s(demands: Sequence[Demand]) -> float:
    return sum(demand.req_per_s for demand in demands)
