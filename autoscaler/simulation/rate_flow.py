"""The requests of one model as a flow through the instances that serve it.

It holds the queue in front of the instances, and computes the share of the requests that attain the
SLO and the times at which requests end. As in the gateway (`serving.wait_queue`), requests that can
still meet the TTFT limit go first, in order of arrival, and late requests go after them. The wait
counts towards the TTFT.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from autoscaler.domain.workload import Slo
from autoscaler.performance.numba_decorators import compiled
from autoscaler.serving.wait_queue import LATE
from autoscaler.simulation.arrival_flow import Batch, Ints, empty_sketch
from autoscaler.simulation.instance_speed import InstanceSet, Latencies

_SMOOTH_S = 15.0
"""Just after a change of the rate, the load is the mean over about the time that a request
stays."""
_SETTLE_S, _MEAN_S = 60.0, 300.0
"""From `_SETTLE_S` after a change on, the load is the mean since the change, at most `_MEAN_S`."""
_SIGMAS, _MIN_CHANGE = 3.0, 0.03
"""A rate has changed if it differs by more than this relative change and by more than chance
(standard deviations)."""

_Part = tuple[InstanceSet, float, Latencies]
"""An instance set, its share of the flow, and the latencies of that share."""


@dataclass(slots=True)
class Cohort:
    """Requests that arrived in one span, or the late part of them. requests: their number. batch:
    all requests of the span. unsent: number of requests not yet sent to an instance. served,
    attained: counts of the sent requests. ttft, tpot: counts of the served requests by bucket minus
    LOWEST. due_s: time at which the requests end.
    """

    at_s: float
    batch: Batch
    requests: int
    unsent: int
    served: int = 0
    attained: float = 0.0
    refused: int = 0
    due_s: float = 0.0
    ttft: Ints = field(default_factory=empty_sketch)
    tpot: Ints = field(default_factory=empty_sketch)

    def split(self, count: int) -> Cohort:
        """Move `count` unsent requests to a new cohort."""
        self.requests -= count
        self.unsent -= count
        return Cohort(self.at_s, self.batch, count, count)


@dataclass(frozen=True, slots=True)
class _Departures:
    """`count` requests that leave the instances evenly over [from_s, to_s)."""

    count: int
    from_s: float
    to_s: float


@dataclass(slots=True)
class Flow:
    """The requests of one model.

    hold_s: longest wait while no instance serves. queue_s: longest wait while some instance serves.
    max_waiting: maximum number of waiting requests. waiting: cohorts that can meet the TTFT limit,
    in order of arrival. late: cohorts that cannot. sent: cohorts in the instances, by due time.
    accepted: number of requests sent to instances. req_per_s: current load. stay_s: time that a
    request stays. random: draws how many requests of a
    span are still in the instances.
    """

    slo: Slo
    hold_s: float
    queue_s: float
    max_waiting: int
    random: np.random.Generator
    waiting: deque[Cohort] = field(default_factory=deque)
    late: deque[Cohort] = field(default_factory=deque)
    sent: deque[Cohort] = field(default_factory=deque)
    accepted: int = 0
    req_per_s: float = 0.0
    stay_s: float = 0.0
    _departures: deque[_Departures] = field(default_factory=deque)
    _backlog: float = 0.0  # number of requests in the instances in excess of that for an open queue
    _recent_req_per_s: float = 0.0
    _steady_s: float = 0.0

    @property
    def unsent(self) -> int:
        """Requests that wait for an instance."""
        return sum(cohort.unsent for cohort in (*self.waiting, *self.late))

    @property
    def cohorts(self) -> tuple[Cohort, ...]:
        """All cohorts that have not ended."""
        return (*self.sent, *self.waiting, *self.late)

    def in_instances(self, now_s: float) -> int:
        """Requests in the instances at `now_s`.

        The requests of a span arrive at independent times, so the number that is still in the
        instances has a binomial distribution.
        """
        total = 0
        for one in self._departures:
            left = (one.to_s - now_s) / (one.to_s - one.from_s)
            if left > 0.0:
                total += one.count if left >= 1.0 else int(self.random.binomial(one.count, left))
        return total

    def is_steady(self, requests: float, span_s: float) -> bool:
        """Whether no request waits, and `requests` in the next `span_s` match the recent rate
        within chance."""
        usual = self.req_per_s * span_s
        chance = _SIGMAS * math.sqrt(max(1.0, usual))
        waits = self.waiting or self.late
        return not waits and abs(requests - usual) <= max(chance, _MIN_CHANGE * usual)

    def advance(
        self, batch: Batch, from_s: float, to_s: float, instance_sets: Sequence[InstanceSet]
    ) -> list[Cohort]:
        """Add `batch`, which arrived in [from_s, to_s). Returns the cohorts that have ended by
        `to_s`."""
        span_s = to_s - from_s
        self._update_rate(batch.servable / span_s, span_s)
        queued = sum(cohort.unsent for cohort in self.waiting)
        if batch.requests:
            self.waiting.append(
                Cohort(0.5 * (from_s + to_s), batch, batch.requests, batch.servable)
            )
        total_req_per_s = sum(instance_set.req_per_s for instance_set in instance_sets)
        if total_req_per_s > 0.0:
            self._serve(from_s, to_s, instance_sets, total_req_per_s, queued)
        self._drop_served()
        self._move_late(total_req_per_s)
        self._refuse(to_s, total_req_per_s > 0.0)
        while self._departures and self._departures[0].to_s <= to_s:
            self._departures.popleft()
        ended = []
        while self.sent and self.sent[0].due_s <= to_s:
            ended.append(self.sent.popleft())
        return ended

    def _update_rate(self, arrived_req_per_s: float, span_s: float) -> None:
        """Update the load after a span with arrivals at `arrived_req_per_s`.

        Latencies at a load already contain the effect of random arrivals, and a mean rate over a
        few seconds would count it twice. So the load is the mean rate since the last significant
        change.
        """
        self._recent_req_per_s += (1.0 - math.exp(-span_s / _SMOOTH_S)) * (
            arrived_req_per_s - self._recent_req_per_s
        )
        self._steady_s = min(_MEAN_S, self._steady_s + span_s)
        if self._steady_s > _SETTLE_S:
            self.req_per_s += span_s / self._steady_s * (arrived_req_per_s - self.req_per_s)
            usual = max(self.req_per_s, 1.0 / _SMOOTH_S)
            chance = _SIGMAS * math.sqrt(usual / (2.0 * _SMOOTH_S))
            if abs(self._recent_req_per_s - self.req_per_s) <= max(chance, _MIN_CHANGE * usual):
                return
            self._steady_s = 0.0
        self.req_per_s = self._recent_req_per_s

    def _serve(
        self,
        from_s: float,
        to_s: float,
        instance_sets: Sequence[InstanceSet],
        total_req_per_s: float,
        queued: int,
    ) -> None:
        """Send requests to the instances. queued: number of requests in `waiting` at `from_s`."""
        span_s = to_s - from_s
        served = total_req_per_s * span_s
        on_time = sum(cohort.unsent for cohort in self.waiting)
        spare = sum(one.room for one in instance_sets)
        room = served + max(0.0, spare - self._backlog)
        rate = total_req_per_s if self.unsent > served else self.req_per_s
        before, sent = self._backlog, min(float(self.unsent), room)
        self._backlog = min(spare, max(0.0, before + sent - served))
        full = 0.5 * (before + self._backlog) / spare if spare else float(self.unsent > room)
        full = min(1.0, full)
        weights = sum(instance_set.weight for instance_set in instance_sets)
        parts: list[_Part] = []
        for one in instance_sets:
            share = one.weight / weights if weights else 1.0 / len(instance_sets)
            if full < 1.0:
                parts.append((one, share * (1.0 - full), one.at(rate * share)))
            if full > 0.0:
                parts.append((one, share * full, one.full))
        self.stay_s = sum(share * latencies.stay_s for _, share, latencies in parts)
        growth_req_per_s = (on_time - queued - max(0.0, room - served)) / span_s - total_req_per_s
        most = self._most_on_time(total_req_per_s)
        wait_s = _mean_queue(queued, growth_req_per_s, most, span_s) / total_req_per_s
        done = 0
        for late, cohorts in ((False, self.waiting), (True, self.late)):
            for cohort in cohorts:
                count = min(cohort.unsent, math.ceil(room - done))
                if count <= 0:
                    continue
                starts_s = from_s + span_s * (done + 0.5 * count) / room
                if not late:
                    starts_s = max(starts_s, cohort.at_s + wait_s)
                wait_ms = 1000.0 * (starts_s - cohort.at_s if late else wait_s)
                self._send(cohort, count, wait_ms, span_s, parts)
                done += count
                cohort.due_s = starts_s + self.stay_s
                lasts_s = span_s if cohort.at_s >= from_s else span_s * count / room
                self._departures.append(
                    _Departures(count, cohort.due_s - 0.5 * lasts_s, cohort.due_s + 0.5 * lasts_s)
                )

    def _send(
        self,
        cohort: Cohort,
        count: int,
        wait_ms: float,
        span_s: float,
        parts: Sequence[_Part],
    ) -> None:
        """Count `count` requests as sent. parts: (instance set, its share, its latencies)."""
        for one, share, latencies in parts:
            upto, ttft, tpot = latencies.stats(self.slo, wait_ms)
            cohort.attained += one.attained(upto, count * share, span_s)
            _count_sketch(cohort.ttft, *ttft, count * share)
            _count_sketch(cohort.tpot, *tpot, count * share)
        cohort.unsent -= count
        cohort.served += count
        self.accepted += count

    def _most_on_time(self, total_req_per_s: float) -> float:
        """The largest number of queued requests such that the last one is sent before it is
        late."""
        return total_req_per_s * LATE * self.slo.ttft_ms / 1000.0

    def _drop_served(self) -> None:
        """Move the cohorts without unsent requests to `sent`."""
        for cohorts in (self.waiting, self.late):
            self.sent.extend(cohort for cohort in cohorts if not cohort.unsent)
        self.waiting = deque(cohort for cohort in self.waiting if cohort.unsent)
        self.late = deque(cohort for cohort in self.late if cohort.unsent)

    def _move_late(self, total_req_per_s: float) -> None:
        """Move the oldest requests beyond `_most_on_time` to `late`."""
        over = sum(cohort.unsent for cohort in self.waiting) - math.ceil(
            self._most_on_time(total_req_per_s)
        )
        while over > 0:
            oldest = self.waiting[0]
            count = min(over, oldest.unsent)
            over -= count
            if count == oldest.unsent and not oldest.served:
                self.late.append(self.waiting.popleft())
                continue
            self.late.append(oldest.split(count))
            if not oldest.unsent:
                self.sent.append(self.waiting.popleft())

    def _refuse(self, now_s: float, serves: bool) -> None:
        longest_s = self.queue_s if serves else self.hold_s
        for cohorts in (self.late, self.waiting):
            while cohorts and now_s - cohorts[0].at_s > longest_s:
                self._refuse_part(cohorts, 0, cohorts[0].unsent, now_s)
        over = self.unsent - self.max_waiting
        for cohorts in (self.waiting, self.late):
            while over > 0 and cohorts:
                count = min(over, cohorts[-1].unsent)
                over -= count
                self._refuse_part(cohorts, -1, count, now_s)

    def _refuse_part(self, cohorts: deque[Cohort], at: int, count: int, now_s: float) -> None:
        """Refuse `count` requests of the cohort at `at`; remove the cohort if it has no requests
        left."""
        cohort = cohorts[at]
        cohort.unsent -= count
        cohort.refused += count
        if not cohort.unsent:
            cohort.due_s = now_s
            self.sent.appendleft(cohort)
            del cohorts[at]


def _mean_queue(queued: float, growth_req_per_s: float, most: float, span_s: float) -> float:
    """Mean length over `span_s` of a queue that grows at a constant rate between 0 and `most`."""
    queued = min(queued, most)
    end = min(most, max(0.0, queued + growth_req_per_s * span_s))
    moving_s = (end - queued) / growth_req_per_s if growth_req_per_s else 0.0
    return (0.5 * (queued + end) * moving_s + end * (span_s - moving_s)) / span_s


@compiled
def _count_sketch(
    counts: Ints, places: Ints, upto: npt.NDArray[np.float64], requests: float
) -> None:
    """Add `requests` requests with the distribution (places, upto) to the sketch `counts`."""
    before = 0
    for at in range(len(places)):
        now = int(np.rint(upto[at] * requests))
        counts[places[at]] += now - before
        before = now


def scale_counts(counts: Ints, share: float) -> Ints:
    """`counts` times `share`, rounded."""
    return counts if share >= 1.0 else np.rint(share * counts).astype(np.int64)
