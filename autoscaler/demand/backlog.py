"""Requests in flight beyond what the load explains: the earliest sign of too little capacity.

Owns Little's law for a fleet of combos, the test against it and the sizes that follow. A queue
grows within seconds where the arrival rate needs minutes to be told from chance: at 2.1 req/s on
1.9 no test of the rate would call the difference more than noise, while every request waits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from autoscaler.demand.significance import poisson_tail
from autoscaler.domain.combo import Combo
from autoscaler.domain.workload import Lengths

SIGMAS = 3.0
_CHANCE = 2e-3  # about what 3 sigma are for large counts; small ones are tested exactly
_BATCHES = 2.0
_SPARE = 4.0


@dataclass(frozen=True, slots=True)
class Overload:
    """More requests are in flight than the load explains.

    in_flight (N) and expected (L) requests. req_per_s: the rate that would put N requests in
    flight at predicted latency, capped by what the rate can be. drain_requests: N - L.
    """

    in_flight: int
    expected: float
    req_per_s: float
    drain_requests: float


def residence_s(combo: Combo, lengths: Lengths) -> float:
    """Predicted seconds that a request spends in `combo`: TTFT + TPOT x R_out."""
    return (combo.ttft_ms + combo.tpot_ms * lengths.output_tokens) / 1000.0


def expected_in_flight(req_per_s: float, ready: Iterable[Combo], lengths: Lengths) -> float:
    """L = rate x residence time (Little's law), the rate being spread in proportion to capacity.

    Predicted latency is that of a full batch, so L is on the high side below capacity. 0 without
    combos.
    """
    combos = tuple(ready)
    capacity = sum(combo.req_per_s for combo in combos)
    if not combos:
        return 0.0
    seconds = sum(combo.req_per_s * residence_s(combo, lengths) for combo in combos) / capacity
    return req_per_s * seconds


def is_unexplained(in_flight: int, expected: float) -> bool:
    """Whether N > L + 3 sqrt(L), and by chance (Poisson) in fewer than 1 of 500 cases.

    The second matters where L is small: 2 in flight where 0.3 are expected is no sign of anything.
    """
    if in_flight <= expected + SIGMAS * math.sqrt(expected):
        return False
    return expected <= 0.0 or poisson_tail(in_flight, expected) < _CHANCE


def overload(
    in_flight: int,
    req_per_s: float,
    highest_req_per_s: float,
    ready: Iterable[Combo],
    lengths: Lengths,
) -> Overload | None:
    """What requests in flight prove beyond the load, if anything.

    req_per_s: the present rate, highest_req_per_s: its upper bound (`present.present_rate`).
    The rate that follows is req_per_s x N / L, and no more than highest_req_per_s: beyond it the
    excess is a queue that is left over and has to be drained, or combos slower than predicted.
    None without ready combos: requests then wait because nothing serves, which is no measurement.
    """
    combos = tuple(ready)
    expected = expected_in_flight(req_per_s, combos, lengths)
    if not combos or expected <= 0.0 or not is_unexplained(in_flight, expected):
        return None
    rate = min(req_per_s * in_flight / expected, max(req_per_s, highest_req_per_s))
    return Overload(in_flight, expected, rate, in_flight - expected)


def raw_needed_req_per_s(rate_req_per_s: float, waiting_requests: float, drain_s: float) -> float:
    """Raw capacity that serves `rate_req_per_s` and drains what waits within `drain_s`."""
    return rate_req_per_s + waiting_requests / drain_s


def holds(combo: Combo, lengths: Lengths) -> float:
    """Most requests that are in one such combo while it keeps up.

    Twice what is in it at capacity, and a few more for small ones: beyond it they wait.
    """
    return _BATCHES * combo.req_per_s * residence_s(combo, lengths) + _SPARE


def waiting(in_flight: int, ready: Iterable[Combo], lengths: Lengths) -> float:
    """Requests in flight beyond what all `ready` combos hold; 0 while they keep up."""
    return max(0.0, in_flight - sum(holds(combo, lengths) for combo in ready))
