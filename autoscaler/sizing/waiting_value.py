"""The value of waiting: whether capacity that is idle now is worth its rent.

Idle capacity costs rent until demand returns. Without it, a return costs the rent of a start, and
requests miss their SLO until the new instance serves. The model's own history tells how soon demand
returned after it had been low for as long as now, and how far it then exceeded the remaining
capacity. Costs are in minutes of the rent of the idle capacity.
"""

from __future__ import annotations

import math

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
    history: History, service: Service, start_s: float, has_budget: bool
) -> float:
    """The highest rate in requests/s for which idle capacity is worth its rent now; 0 if there is
    none. start_s: time that a new instance takes to serve. has_budget: whether the model may miss
    more requests within its percentile.

    Misses within the error budget are free. Beyond it, a miss costs p / (1 - p) times the rent of
    the capacity for one request, because capacity is planned for the share p of the requests, and
    this is the cheapest share at that price (the critical ratio of the newsvendor problem).
    """
    share = min(_MOST_PERCENTILE, service.percentile)
    price = 0 if has_budget else round(share / (1.0 - share))
    return _rate_worth_keeping(history, round(start_s), price, round(100 * service.utilization))


@TICK_CACHES.by_identity  # cached, because the history changes only every minute
def _rate_worth_keeping(
    history: History, start_s: int, miss_price: int, utilization_percent: int
) -> float:
    rates = _without_gaps(history.rates())
    for level in rates.max(initial=0.0) * np.arange(1.0, 0.0, -SLIVER):
        exceeds = rates > level * 100.0 / utilization_percent
        if _is_worth_its_rent(rates >= level, exceeds, start_s / MINUTE_S, miss_price):
            return float(level)
    return 0.0


def _is_worth_its_rent(
    reaches: npt.NDArray[np.bool_],
    exceeds: npt.NDArray[np.bool_],
    start_min: float,
    miss_price: int,
) -> bool:
    """Whether capacity for a rate pays for itself until some moment: the returns of demand up to
    that moment save more than the rent until then. One return is counted as never, because few
    returns prove little.

    reaches, exceeds, (n,): the minutes in which demand reached the rate, and those in which it
    exceeded the capacity for it without the margin of `utilization`, so that requests would miss.
    """
    at = np.flatnonzero(reaches)
    if not len(at):
        return False
    low_min = np.diff(at) - 1.0
    idle_min = len(reaches) - 1.0 - at[-1]
    returned = low_min > idle_min
    wait_min = low_min[returned] - idle_min
    order = np.argsort(wait_min, kind="stable")
    wait_min = wait_min[order]
    missed = _share_after(exceeds, at[1:][returned][order], start_min)
    saved_min = np.cumsum(start_min * (1.0 + miss_price * missed))
    later = np.arange(
        len(wait_min), 0, -1.0
    )  # returns after this one, and the one counted as never
    return bool((saved_min > np.cumsum(wait_min) + later * wait_min).any())


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
