"""Arrivals per minute of one model over the last three days, as an immutable value.

A minute is summed from the 10 s blocks of a tick once it is complete. A minute with too few reports
is unknown, which differs from zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoscaler.estimate.arrival_counts import BLOCK_S, Blocks

KEPT_HOURS = 72
MINUTES = 60
HOUR_MS = 3_600_000
UNKNOWN = -1
"""Arrivals of a minute that was not observed."""
MINUTE_S = 60
"""Seconds of one entry of the history."""
_NO_MINUTES = (UNKNOWN,) * MINUTES
_PER_MINUTE = MINUTE_S // BLOCK_S
_MIN_COVERAGE = 0.75
"""Share of a minute that must have been reported; a shorter part is no measurement of the
minute."""
_ARRIVAL_DELAY_S = 3  # within this delay all records of a second arrive

Rates = NDArray[np.float64]
"""Requests/s of consecutive minutes, oldest first; NaN for an unknown minute."""

Hour = tuple[int, ...]
"""Arrivals of 60 minutes, -1 for an unknown minute."""


@dataclass(frozen=True, slots=True)
class History:
    """Arrivals per minute. hours: consecutive hours; first_hour: the number of the first, in hours
    since the epoch. end_minute: the first minute that is not counted yet, in minutes since the
    epoch; 0 if the history is empty."""

    first_hour: int = 0
    hours: tuple[Hour, ...] = ()
    end_minute: int = 0

    def rates(self) -> Rates:
        """Requests/s per minute, from the first known minute until before `end_minute`."""
        counts = np.array(self.hours, np.float64).ravel()
        counts = counts[: self.end_minute - self.first_hour * MINUTES]
        known = np.flatnonzero(counts >= 0.0)
        if not len(known):
            return np.empty(0)
        counts = counts[known[0] :]
        return np.where(counts >= 0.0, counts / MINUTE_S, np.nan)

    def hour(self, number: int) -> Hour:
        """The minutes of hour `number`, counted from the epoch."""
        at = number - self.first_hour
        return self.hours[at] if 0 <= at < len(self.hours) else _NO_MINUTES


def extend_history(history: History, blocks: Blocks, now_ms: int) -> History:
    """`history` extended by the minutes that `blocks` complete; `history` itself if no minute is
    new. The blocks end at `now_ms`. Missed minutes are filled in as far back as the blocks reach.
    """
    end = (now_ms // 1000 - _ARRIVAL_DELAY_S) // MINUTE_S
    if end <= history.end_minute:
        return history
    first_block = now_ms // 1000 // BLOCK_S - len(blocks)
    first = max(history.end_minute, -(-first_block // _PER_MINUTE))
    found = {}
    for minute in range(first, end):
        start = minute * _PER_MINUTE - first_block
        part = blocks[start : start + _PER_MINUTE]
        covered_s = sum(seconds for seconds, _ in part)
        if covered_s >= _MIN_COVERAGE * MINUTE_S:
            found[minute] = round(sum(count for _, count in part) * MINUTE_S / covered_s)
    return _with_minutes(history, found, end)


def restore_history(hours: Iterable[tuple[int, Hour]], now_ms: int) -> History:
    """The history from recorded hours (hour since the epoch, its minutes), in any order. Minutes
    after `now_ms`, which a wrong clock may have caused, and minutes that are too old are
    ignored."""
    now_minute = now_ms // 1000 // MINUTE_S
    found = {
        hour * MINUTES + k: count
        for hour, minutes in hours
        if now_minute // MINUTES - KEPT_HOURS < hour <= now_minute // MINUTES
        for k, count in enumerate(minutes[:MINUTES])
        if count >= 0 and hour * MINUTES + k < now_minute
    }
    return _with_minutes(History(), found, max(found) + 1) if found else History()


def _with_minutes(history: History, found: dict[int, int], end: int) -> History:
    last = max(0, end - 1) // MINUTES
    first = max(history.first_hour, last - KEPT_HOURS + 1) if history.hours else last
    if found:
        first = max(min(first, min(found) // MINUTES), last - KEPT_HOURS + 1)
    by_hour: dict[int, dict[int, int]] = {}
    for minute, count in found.items():
        by_hour.setdefault(minute // MINUTES, {})[minute % MINUTES] = count
    hours = []
    for number in range(first, last + 1):
        minutes = history.hour(number)
        here = by_hour.get(number)
        if here:
            minutes = tuple(here.get(k, known) for k, known in enumerate(minutes))
        hours.append(minutes)
    return History(first, tuple(hours), end)
