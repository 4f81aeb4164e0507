"""The arrival rate of a model by its executors' counts, which stand in for missing telemetry.

A request that an engine accepted has finished or is in flight. So the arrivals of a span are the
change of both counts together. Requests that wait in gateways are not visible: a saturated fleet
shows its throughput instead of its demand. Requests whose clients left are missing too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

REMEMBER_MS = 20_000
"""Distance in ms between two remembered moments: over less time, one burst looks like a rate."""
_MOMENTS = 6
"""Number of remembered moments: about two minutes, in which an excess of a seventh over 6 req/s is
significant."""
MOST_LOAD = 2.0
"""Highest load that executors' counts can show, as a multiple of the predicted capacity. It limits
the effect of an executor that reports wrong counts to the capacity of its own groups."""

PROBES_PER_S = 0.2
"""Highest rate at which an executor probes an idle instance with a request, which counts too."""


@dataclass(frozen=True, slots=True)
class GroupCount:
    """Requests that the engines of one group accepted since they started. reported_ms: time of the
    oldest status that contributed, by its executor's clock."""

    reported_ms: int
    accepted: int


@dataclass(frozen=True, slots=True)
class Moment:
    """The requests of a model at `at_ms` of the controller's clock. groups: counts of the reported
    groups by name, empty while telemetry shows arrivals."""

    at_ms: int
    in_flight: int
    groups: Mapping[str, GroupCount] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineRate:
    """The mean arrival rate over the last `span_s` seconds. instances: number of instances that
    were counted and accept requests."""

    req_per_s: float
    span_s: float
    instances: int = 0

    @property
    def arrived(self) -> float:
        """Requests that arrived, without those that executors' probes may explain."""
        probes = self.instances * (PROBES_PER_S * self.span_s + 1.0)
        return max(0.0, self.req_per_s * self.span_s - probes)


def is_recent(moments: Sequence[Moment], now_ms: int) -> bool:
    """Whether the newest of `moments` is too recent for another one."""
    return bool(moments) and now_ms - moments[-1].at_ms < REMEMBER_MS


def remember(moments: tuple[Moment, ...], now: Moment) -> tuple[Moment, ...]:
    """`moments`, oldest first, with `now`."""
    return (*moments, now)[-_MOMENTS:]


def engine_rates(
    moments: Sequence[Moment],
    now_ms: int,
    groups: Mapping[str, GroupCount],
    capacity_req_per_s: Mapping[str, float],
    instances: Mapping[str, int],
) -> tuple[EngineRate, ...]:
    """The mean rates since each of `moments`, shortest span first; none for a moment since which no
    count rose.

    groups: the present counts. capacity_req_per_s: predicted capacity by group. instances: number
    of instances that accept requests, by group. A group is left out of a rate if the moment does
    not know it, or if no newer status arrived since. If its count fell within the remembered time,
    an engine or its executor restarted, so it is left out of all rates.
    """
    known = {name: [m.groups[name] for m in moments if name in m.groups] for name in groups}
    steady = {
        name: seen
        for name, seen in groups.items()
        if all(one.accepted <= after.accepted for one, after in pairwise([*known[name], seen]))
    }
    found = []
    for then in reversed(moments):
        span_ms = now_ms - then.at_ms
        if span_ms < REMEMBER_MS:
            continue
        grown = {
            name: _growth_req_per_s(
                then.groups[name], seen, span_ms, capacity_req_per_s.get(name, 0.0)
            )
            for name, seen in steady.items()
            if name in then.groups
        }
        total = sum(grown.values())
        if total > 0.0:
            count = sum(instances.get(name, 0) for name, rate in grown.items() if rate > 0.0)
            found.append(EngineRate(total, span_ms / 1000.0, count))
    return tuple(found)


def counted_within(rates: Sequence[EngineRate], for_s: float) -> EngineRate | None:
    """The rate over the last `for_s` seconds, or over the longest span if all are shorter; None
    without rates."""
    return next((rate for rate in rates if rate.span_s >= for_s), rates[-1] if rates else None)


def _growth_req_per_s(
    then: GroupCount, now: GroupCount, span_ms: int, capacity_req_per_s: float
) -> float:
    """The rate of a group from `then` to `now`. The span is the longer one of the controller's
    (span_ms) and the executor's clock: a wrong clock may lower the rate, but not raise it."""
    reported_ms = now.reported_ms - then.reported_ms
    if reported_ms <= 0:
        return 0.0
    arrived = 1000.0 * (now.accepted - then.accepted)
    return min(arrived / max(span_ms, reported_ms), MOST_LOAD * capacity_req_per_s)
