"""The value of waiting: whether capacity that is idle now is worth its rent.

Idle capacity costs rent until demand returns. Without it, a return costs the rent of a start, and
requests miss their SLO until the new instance serves. The model's own history tells how soon demand
returned after it had been low for as long as now, and how far it then exceeded the remaining
capacity. A declared rate that demand never reached may still come, so a new model keeps the
capacity for it at first. Costs are in minutes of the rent of the idle capacity.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoscaler.domain.cluster import Service
from autoscaler.domain.result_caches import TICK_CACHES
from autoscaler.estimate.forecast.history import MINUTE_S, History, Rates
from autoscaler.state.model_view import SLIVER

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_MOST_PERCENTILE = 0.999  # a percentile of 1 would make a missed request infinitely expensive


def rate_worth_keeping(
    history: History, service: Service, start_s: float, may_miss: float
) -> float:
    """The highest rate in requests/s for which idle capacity is worth its rent now; 0 if there is
    none. start_s: time that a new instance takes to serve. may_miss: requests that the model may
    still miss within its percentile; rounded down to a power of two, so that the result of the
    last tick can be used again.

    Misses within the error budget are free. Beyond it, a miss costs p / (1 - p) times the rent of
    the capacity for one request, because capacity is planned for the share p of the requests, and
    this is the cheapest share at that price (the critical ratio of the newsvendor problem).
    """
    free = 2 ** math.floor(math.log2(may_miss)) if may_miss >= 1.0 else 0
    return _rate_worth_keeping(history, service, round(start_s), free)


@TICK_CACHES.by_identity  # cached, because the history changes only every minute
def _rate_worth_keeping(history: History, service: Service, start_s: int, free: int) -> float:
    rates = _without_gaps(history.rates())
    share = min(_MOST_PERCENTILE, service.percentile)
    highest = np.array([service.req_per_s, rates.max(initial=0.0)])
    levels = np.unique(np.outer(highest[highest > 0.0], np.arange(1.0, 0.0, -SLIVER)))
    for level in levels[::-1]:
        spare = level / service.utilization
        returns = _Returns(
            reaches=rates >= level,
            exceeds=rates > spare,
            start_min=start_s / MINUTE_S,
            free_min=free / (level * MINUTE_S),
            miss_price=share / (1.0 - share),
        )
        if returns.pay() or returns.may_come(service.req_per_s > spare):
            return float(level)
    return 0.0


@dataclass(frozen=True, slots=True)
class _Returns:
    """The returns of demand to a rate.

    reaches, exceeds, (n,): the minutes in which demand reached the rate, and those in which it
    exceeded the capacity for it without the margin of `utilization`, so that requests would miss.
    start_min: minutes of a start. free_min: minutes of requests at the rate that may be missed
    free. miss_price: the price of a missed minute in minutes of rent.
    """

    reaches: npt.NDArray[np.bool_]
    exceeds: npt.NDArray[np.bool_]
    start_min: float
    free_min: float
    miss_price: float

    def pay(self) -> bool:
        """Whether capacity for the rate pays for itself until some moment: the returns of demand up
        to that moment save more than the rent until then. One return is counted as never, because
        few returns prove little."""
        at = np.flatnonzero(self.reaches)
        if not len(at):
            return False
        low_min = np.diff(at) - 1.0
        idle_min = len(self.reaches) - 1.0 - at[-1]
        returned = low_min > idle_min
        wait_min = low_min[returned] - idle_min
        order = np.argsort(wait_min, kind="stable")
        wait_min = wait_min[order]
        missed = _share_after(self.exceeds, at[1:][returned][order], self.start_min)
        later = np.arange(len(wait_min), 0, -1.0)  # later returns, and the one counted as never
        rent_min = np.cumsum(wait_min) + later * wait_min
        return bool((np.cumsum(self._saved_min(missed)) > rent_min).any())

    def may_come(self, declared: bool) -> bool:
        """Whether demand never reached the rate, but is still worth waiting for, because the
        operator `declared` a rate that exceeds the capacity.

        It may come or never come. If it comes, the time until then has no scale but the time since
        the history began: it comes within w of n minutes with the probability w / (w + n).
        """
        if not declared or self.reaches.any():
            return False
        never = 1.0
        return float(self._saved_min(np.ones(()))) > (1.0 + never) * len(self.reaches)

    def _saved_min(self, missed: Floats) -> Floats:
        """The minutes of rent that capacity saves at a return, if requests of the share `missed`
        of a start would miss."""
        dear_min = np.maximum(0.0, self.start_min * missed - self.free_min)
        found: Floats = self.start_min + self.miss_price * dear_min
        return found


def _share_after(exceeds: npt.NDArray[np.bool_], at: Ints, start_min: float) -> Floats:
    """The share of the minutes of a start from each of `at` (m,) on in which demand `exceeds`."""
    count = np.concatenate(([0], np.cumsum(exceeds)))
    length = max(1, math.ceil(start_min))
    until = np.minimum(at + length, len(exceeds))
    share: Floats = (count[until] - count[at]) / length
    return share


def _without_gaps(rates: Rates) -> Rates:
    """`rates`, with each unknown minute as the minute before it."""
    known = np.where(np.isnan(rates), 0, np.arange(len(rates)))
    filled: Rates = rates[np.maximum.accumulate(known)] if len(rates) else rates
    return filled
