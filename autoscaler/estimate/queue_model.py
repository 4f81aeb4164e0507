"""Requests in flight beyond what the load explains: the earliest sign of too little capacity.

Owns Little's law for a fleet of combos, the test against it and the sizes that follow. A queue
grows within seconds where the arrival rate needs minutes to be told from chance: at 2.1 req/s on
1.9 no test of the rate would call the difference more than noise, while every request waits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from autoscaler.domain.combo import Combo
from autoscaler.domain.workload import Lengths
from autoscaler.performance.numba_decorators import compiled

SIGMAS = 3.0
_CHANCE = 3e-4
_FULLEST = 0.85
_MOST_SLOTS = 2000
_SPARE = 4.0


@dataclass(frozen=True, slots=True)
class Overload:
    """More requests are in flight than the load explains.

    in_flight (N) and expected (L) requests. req_per_s: the rate that would put N requests in
    flight at predicted latency, capped by what the rate can be.
    """

    in_flight: int
    expected: float
    req_per_s: float


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


def most_explained(req_per_s: float, ready: Iterable[Combo], lengths: Lengths) -> float:
    """The most requests in flight that `req_per_s` explains: L + 3 sqrt(L), or the queue of chance.

    With few slots requests also wait at loads that a fleet is planned for: 8 slots at 75% hold
    more than L + 3 sqrt(L) for 5% of the time. So the limit is at least the number that a queue of
    c = capacity x residence servers (M/M/c: Erlang's C, then a factor of the load for each one
    more) exceeds with probability 3e-4. The load counts as 85% of capacity at most: more is not
    explained but overloaded.
    """
    combos = tuple(ready)
    capacity = sum(combo.req_per_s for combo in combos)
    if not combos:
        return 0.0
    full = expected_in_flight(capacity, combos, lengths)
    load = min(_FULLEST, req_per_s / capacity)
    expected = load * full
    limit = expected + SIGMAS * math.sqrt(expected)
    slots = min(_MOST_SLOTS, max(1, round(full)))
    waits = erlang_c(slots, load)
    if waits > _CHANCE:
        limit = max(limit, full + math.log(_CHANCE / waits) / math.log(load))
    return max(limit, _SPARE)  # a few requests at once are no sign of anything


def overload(
    in_flight: int,
    req_per_s: float,
    highest_req_per_s: float,
    ready: Iterable[Combo],
    lengths: Lengths,
) -> Overload | None:
    """What requests in flight prove beyond the load, if anything.

    req_per_s: the present rate, highest_req_per_s: its upper bound (`present.present_rate`). The
    rate that follows is req_per_s x N / L, and no more than highest_req_per_s: beyond it the
    excess is a queue that is left over and has to be drained, or combos are slower than predicted.
    None without ready combos: requests then wait because nothing serves, which is no measurement.
    """
    combos = tuple(ready)
    expected = expected_in_flight(req_per_s, combos, lengths)
    if expected <= 0.0 or in_flight <= most_explained(req_per_s, combos, lengths):
        return None
    highest = max(req_per_s, highest_req_per_s)
    rate = min(req_per_s * max(1.0, in_flight / expected), highest)
    return Overload(in_flight, expected, rate)


@compiled  # up to thousands of servers, each tick
def erlang_c(servers: int, load: float) -> float:
    """The probability that all of `servers` are busy at `load` (0 <= load < 1), by recursion."""
    offered = servers * load
    blocked = 1.0
    for busy in range(1, servers + 1):
        blocked = offered * blocked / (busy + offered * blocked)
    return float(blocked / (1.0 - load * (1.0 - blocked)))
