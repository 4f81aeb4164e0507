"""Windows of five minutes with the fleet's cost and demand, and the costs of other fleets in them.

The windows are kept for a day. Pure: samples and answers are input, rows for the page are output.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.workload import Demand, Lengths
from autoscaler.planning.fleet_comparison import FleetCost
from streams.console.rounding import rounded
from streams.solver.other_fleets import Answer, Question, WindowCosts, WindowQuestion

WINDOW_MS = 300_000
KEPT = 288
"""Windows of a day."""
_MOST_ASKED = 12
_MINUTE_MS = 60_000
_GAP_MS = 60_000
_LEAST_COVERED_MS = WINDOW_MS // 2
_MS_PER_H = 3_600_000.0


@dataclass(slots=True)
class _Minute:
    """The sum and the number of the samples of one model in one minute."""

    sum_req_per_s: float = 0.0
    samples: int = 0


@dataclass(slots=True)
class CostWindow:
    """One window. usd: cost of the fleet in `covered_ms` of it. peaks: the mean rate of each
    model's busiest minute. is_answered: whether the costs of other fleets were computed; costs is
    None if there was no time for them."""

    from_ms: int
    covered_ms: int = 0
    usd: float = 0.0
    peaks: dict[str, float] = field(default_factory=dict)
    demands: tuple[Demand, ...] = ()
    prices: dict[str, float] = field(default_factory=dict)
    cluster: Cluster | None = None
    is_answered: bool = False
    costs: WindowCosts | None = None

    @property
    def hours(self) -> float:
        return self.covered_ms / _MS_PER_H

    @property
    def asked_req_per_s(self) -> float:
        return sum(demand.req_per_s for demand in self.demands)


class CostWindows:
    """Collects windows from samples of the fleet. `version` changes with each answer."""

    def __init__(self) -> None:
        self._closed: deque[CostWindow] = deque(maxlen=KEPT)
        self._open: CostWindow | None = None
        self._minute_ms = 0
        self._minutes: dict[str, _Minute] = {}
        self._last: tuple[int, float] | None = None
        self._peak: FleetCost | None = None
        self._peak_asked_req_per_s = 0.0
        self._has_owned_nodes = False
        self._answered_ms = 0
        self.version = 0

    def sample(
        self,
        now_ms: int,
        spent_usd: float,
        req_per_s: Mapping[str, float | None],
        cluster: Cluster,
        lengths: Mapping[str, Lengths],
        prices: Mapping[str, float],
    ) -> None:
        """Add one sample. spent_usd: cost of the fleet until now. req_per_s: demand by model,
        None = no data. lengths, prices: planned lengths by model, and prices by pool."""
        if self._last is not None and now_ms < self._last[0]:
            self._closed.clear()  # The clock was set back.
            self._open, self._last, self._minutes = None, None, {}
        begin_ms = now_ms - now_ms % WINDOW_MS
        window = self._open
        if window is not None and self._last is not None:
            since_ms = now_ms - self._last[0]
            if since_ms <= _GAP_MS:
                window.usd += max(0.0, spent_usd - self._last[1])
                window.covered_ms += since_ms
        if now_ms >= self._minute_ms + _MINUTE_MS or window is None or window.from_ms != begin_ms:
            self._end_minute(now_ms)
        if window is not None and window.from_ms != begin_ms:
            self._close(window, cluster, lengths, prices)
            window = None
        if window is None:
            window = self._open = CostWindow(begin_ms)
        for model, rate in req_per_s.items():
            if rate is not None:
                minute = self._minutes.setdefault(model, _Minute())
                minute.sum_req_per_s += rate
                minute.samples += 1
        self._last = now_ms, spent_usd

    def question(self) -> tuple[Question, list[CostWindow]] | None:
        """The newest windows without an answer, and the question for their costs; None if every
        window is answered."""
        waiting = [one for one in reversed(self._closed) if not one.is_answered]
        if not waiting:
            return None
        cluster = waiting[0].cluster
        assert cluster is not None  # noqa: S101  a closed window has a cluster
        asked = [one for one in waiting if one.cluster == cluster][:_MOST_ASKED]
        windows = tuple(WindowQuestion(one.demands, one.prices) for one in asked)
        peaks = _peaks(self._closed, cluster)
        return Question(cluster, windows, peaks, self._closed[-1].prices), asked

    def answer(self, asked: Sequence[CostWindow], peaks: Sequence[Demand], found: Answer,
               now_ms: int) -> None:  # fmt: skip
        """Store the answer to `question`. Windows that the time limit left out are asked for again,
        except if it left out all: then the first one gets no costs, so that others get their turn.
        """
        for window, costs in zip(asked, found.windows, strict=True):
            window.is_answered, window.costs = costs is not None, costs
        if not any(window.is_answered for window in asked):
            asked[0].is_answered = True
        if found.peak is not None:
            self._peak = found.peak
            self._peak_asked_req_per_s = sum(demand.req_per_s for demand in peaks)
        self._has_owned_nodes = found.has_owned_nodes
        self._answered_ms = now_ms
        self.version += 1

    def row(self) -> dict[str, Any] | None:
        """The costs for the page, None before the first answer.

        at: time of the last answer. from, to: the windows in ms. usd: cost of the fleet in them.
        fleets: other fleets with their cost per hour in each window, their cost over all windows,
        and the share of the demand that they serve.
        """
        known = [(one, one.costs) for one in self._closed if one.costs is not None]
        if not known:
            return None
        windows = [window for window, _ in known]
        fleets = []
        if self._peak is not None:
            asked = self._peak_asked_req_per_s
            unserved = self._peak.unserved_req_per_s / asked if asked else 0.0
            fleets.append(_fleet("peak", "", windows, [self._peak] * len(windows), unserved))
        best = _best_type(known)
        if best:
            kind = "rented type" if self._has_owned_nodes else "type"
            fleets.append(_fleet(kind, best, windows, [c.by_type.get(best) for _, c in known]))
        fleets.append(_fleet("alone", "", windows, [c.alone for _, c in known]))
        fleets.append(_fleet("together", "", windows, [c.together for _, c in known]))
        return {
            "at": self._answered_ms,
            "from": [window.from_ms for window in windows],
            "to": [window.from_ms + WINDOW_MS for window in windows],
            "usd": rounded(sum(window.usd for window in windows)),
            "hours": rounded(sum(window.hours for window in windows)),
            "fleets": [one for one in fleets if one is not None],
        }

    def _end_minute(self, now_ms: int) -> None:
        for model, minute in self._minutes.items():
            mean = minute.sum_req_per_s / minute.samples
            if self._open is not None:
                self._open.peaks[model] = max(mean, self._open.peaks.get(model, 0.0))
        self._minutes = {}
        self._minute_ms = now_ms - now_ms % _MINUTE_MS

    def _close(
        self,
        window: CostWindow,
        cluster: Cluster,
        lengths: Mapping[str, Lengths],
        prices: Mapping[str, float],
    ) -> None:
        """Keep `window` if it can be compared: it is covered by samples, and no model whose demand
        was known before is silent in it."""
        if window.covered_ms < _LEAST_COVERED_MS or not window.peaks:
            return
        declared = {service.model: service for service in cluster.services}
        before = self._closed[-1].peaks.keys() if self._closed else frozenset()
        if (before & declared.keys()) - window.peaks.keys():
            return
        window.demands = tuple(
            Demand(model, rate, lengths.get(model) or declared[model].lengths)
            for model, rate in sorted(window.peaks.items())
            if model in declared and rate > 0.0
        )
        window.cluster, window.prices = cluster, dict(prices)
        self._closed.append(window)


def _peaks(windows: Iterable[CostWindow], cluster: Cluster) -> tuple[Demand, ...]:
    """The demand of each declared model in its busiest minute, over all windows."""
    found: dict[str, Demand] = {}
    for window in windows:
        for demand in window.demands:
            known = found.get(demand.model)
            if known is None or demand.req_per_s > known.req_per_s:
                found[demand.model] = demand
    declared = {service.model for service in cluster.services}
    return tuple(demand for model, demand in sorted(found.items()) if model in declared)


def _best_type(known: Sequence[tuple[CostWindow, WindowCosts]]) -> str:
    """The GPU type that serves most models, then most of the demand, then at the lowest cost; ""
    if there is no choice. Only types with a cost in every window count."""
    names = set(known[0][1].by_type)
    for _, costs in known:
        names &= set(costs.by_type)
    asked = sum(window.asked_req_per_s * window.hours for window, _ in known)

    def order(name: str) -> tuple[int, float, float]:
        costs = [(window, costs.by_type[name]) for window, costs in known]
        missing = sum(cost.unserved_req_per_s * window.hours for window, cost in costs)
        return (
            max(cost.homeless for _, cost in costs),
            round(missing / asked, 3) if asked else 0.0,
            sum(cost.usd_per_h * window.hours for window, cost in costs),
        )

    return min(sorted(names), key=order, default="")


def _fleet(
    kind: str,
    gpu: str,
    windows: Sequence[CostWindow],
    costs: Sequence[FleetCost | None],
    unserved: float | None = None,
) -> dict[str, Any] | None:
    """One other fleet. None if a window has no cost of it.

    unserved: share of the demand that it does not serve, None to compute it from `costs`.
    """
    found = [cost for cost in costs if cost is not None]
    if len(found) < len(windows):
        return None
    pairs = list(zip(windows, found, strict=True))
    if unserved is None:
        asked = sum(window.asked_req_per_s * window.hours for window in windows)
        missing = sum(cost.unserved_req_per_s * window.hours for window, cost in pairs)
        unserved = missing / asked if asked else 0.0
    return {
        "kind": kind,
        "gpu": gpu,
        "usd_per_h": [rounded(cost.usd_per_h) for cost in found],
        "usd": rounded(sum(cost.usd_per_h * window.hours for window, cost in pairs)),
        "served": rounded(1.0 - unserved),
    }
