"""Detect overload from the number of requests in flight, by Little's law.

A queue grows within seconds, while a change of the arrival rate needs minutes to be significant: at
2.1 req/s on a capacity of 1.9 every request waits, but no test of the rate detects the excess.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autoscaler.domain.combo import Combo
from autoscaler.domain.workload import Lengths
from autoscaler.estimate.engine_rate import Moment
from autoscaler.performance.numba_decorators import compiled

SIGMAS = 3.0
"""Standard deviations that chance may add to the requests in flight."""
_DRAIN_SIGMAS = 2.0
"""Standard deviations by which the requests in flight must fall within the remembered moments."""
_EXCEEDANCE = 3e-4
"""Probability that chance makes a queue longer than the limit: about one second in an hour."""
_MAX_LOAD = 0.85
"""Highest load that the model of a queue uses: near 1 it would allow any queue."""
_MAX_SLOTS = 2000
"""Highest number of servers in the model of a queue, which limits its time."""
_MIN_LIMIT = 4.0
"""Requests in flight that never prove an overload."""


@dataclass(frozen=True, slots=True)
class Overload:
    """Evidence of overload: more requests are in flight than the load explains.

    in_flight: N requests; expected: L requests by Little's law. req_per_s: the rate that explains N
    requests at the predicted latency, limited to the upper bound of the measured rate.
    """

    in_flight: int
    expected: float
    req_per_s: float


def residence_s(combo: Combo, lengths: Lengths) -> float:
    """Predicted seconds that a request spends in `combo`: TTFT + TPOT x output tokens."""
    return (combo.ttft_ms + combo.tpot_ms * lengths.output_tokens) / 1000.0


def expected_in_flight(req_per_s: float, ready: Iterable[Combo], lengths: Lengths) -> float:
    """Expected requests in flight: L = rate x residence time (Little's law), with the rate split in
    proportion to capacity.

    The predicted latency is that of a full batch, so L is an overestimate at loads below capacity.
    0 without combos.
    """
    combos = tuple(ready)
    capacity = sum(combo.req_per_s for combo in combos)
    if not combos:
        return 0.0
    seconds = sum(combo.req_per_s * residence_s(combo, lengths) for combo in combos) / capacity
    return req_per_s * seconds


def max_explained_in_flight(req_per_s: float, ready: Iterable[Combo], lengths: Lengths) -> float:
    """The most requests in flight that `req_per_s` explains: L + 3 sqrt(L), or more for random
    queueing.

    With few slots, requests wait even at the planned load: 8 slots at 75% hold more than L + 3
    sqrt(L) for 5% of the time. So the limit is at least the number of requests that an M/M/c queue,
    with c = capacity x residence time servers, exceeds with probability 3e-4. (That probability is
    Erlang's C for the first waiting request, multiplied by the load for each further one.) The load
    is limited to 85% of capacity, because a higher load is overload.
    """
    combos = tuple(ready)
    capacity = sum(combo.req_per_s for combo in combos)
    if not combos:
        return 0.0
    full = expected_in_flight(capacity, combos, lengths)
    load = min(_MAX_LOAD, req_per_s / capacity)
    expected = load * full
    limit = expected + SIGMAS * math.sqrt(expected)
    slots = min(_MAX_SLOTS, max(1, round(full)))
    waits = erlang_c(slots, load)
    if waits > _EXCEEDANCE:
        limit = max(limit, full + math.log(_EXCEEDANCE / waits) / math.log(load))
    return max(limit, _MIN_LIMIT)  # a few concurrent requests never prove an overload


def detect_overload(
    in_flight: int,
    req_per_s: float,
    highest_req_per_s: float,
    ready: Iterable[Combo],
    lengths: Lengths,
) -> Overload | None:
    """The overload that `in_flight` requests prove; None without overload.

    req_per_s: the current rate; highest_req_per_s: its upper bound (`change_point.current_rate`).
    The resulting rate is req_per_s x N / L, at most highest_req_per_s, because a larger excess
    comes from an old queue or from combos that are slower than predicted. None if no combo is
    ready, because then requests wait for the first instance.
    """
    combos = tuple(ready)
    expected = expected_in_flight(req_per_s, combos, lengths)
    if expected <= 0.0 or in_flight <= max_explained_in_flight(req_per_s, combos, lengths):
        return None
    highest = max(req_per_s, highest_req_per_s)
    rate = min(req_per_s * max(1.0, in_flight / expected), highest)
    return Overload(in_flight, expected, rate)


def queue_drains(moments: Sequence[Moment], in_flight: int) -> bool:
    """Whether significantly fewer requests are in flight than at the oldest of `moments`: the queue
    of a past shortage is being served, or demand falls."""
    if not moments:
        return False
    then = moments[0].in_flight
    return then - in_flight > _DRAIN_SIGMAS * math.sqrt(then + in_flight)


@compiled  # loops over up to thousands of servers in every tick
def erlang_c(servers: int, load: float) -> float:
    """Probability that all of `servers` are busy at `load` (0 <= load < 1), by recursion."""
    offered = servers * load
    blocked = 1.0
    for busy in range(1, servers + 1):
        blocked = offered * blocked / (busy + offered * blocked)
    return float(blocked / (1.0 - load * (1.0 - blocked)))
