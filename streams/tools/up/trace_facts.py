"""Facts about a trace before the run: the number of requests, its gaps, and the first demand.

Pure: a trace is input, values are output.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.workload import Demand, Lengths
from streams.tools.replay.demand_changes import DemandChange, with_changes
from streams.tools.replay.request_schedule import schedule
from streams.tools.replay.traces import Trace

FIRST_S = 300.0
"""Length in s of the trace's beginning that gives the demand of a model without a declared rate."""
_GAP_S = 60.0
_GAP_MEANS = 30.0


@dataclass(frozen=True, slots=True)
class Gap:
    """A time span without requests, in seconds of the trace."""

    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """The facts about a trace. duration_s: seconds until the last request.

    read_as: the form of the trace and how its times were read, as text.
    """

    requests: int
    duration_s: float
    gaps: tuple[Gap, ...] = ()
    read_as: str = ""


@dataclass(frozen=True, slots=True)
class Span:
    """The span of a run. lead_s: from the start of its first node to its first possible request;
    duration_s: from then to the end of the bill; sent: number of requests that were sent."""

    lead_s: float
    duration_s: float
    sent: int


def traffic(trace: Trace) -> Traffic:
    """The facts about `trace`."""
    read_as = f"{trace.form}; {trace.clock}"
    return Traffic(len(trace.arrivals_ms), trace.duration_s, gaps(trace.arrivals_ms), read_as)


def replayed(
    found: Traffic, cluster: Cluster, trace: Trace, seed: int, changes: Sequence[DemandChange]
) -> Traffic:
    """`found` with the number of requests that the replay sends because of `changes`."""
    if not changes:
        return found
    jobs = schedule(trace, weights(cluster), longest_of(cluster), seed, math.inf)
    return replace(found, requests=len(with_changes(jobs, changes, seed)))


def gaps(arrivals_ms: Sequence[float]) -> tuple[Gap, ...]:
    """Times of a minute or more without arrivals that are also over 30 times the mean gap.

    The time before the first arrival counts as well. In a Poisson stream such a gap has probability
    e^-30.
    """
    usual_ms = arrivals_ms[-1] / max(1, len(arrivals_ms))
    least_ms = max(_GAP_S * 1000.0, _GAP_MEANS * usual_ms)
    return tuple(
        Gap(before / 1000.0, after / 1000.0)
        for before, after in pairwise((0.0, *arrivals_ms))
        if after - before >= least_ms
    )


def weights(cluster: Cluster) -> dict[str, float]:
    """Shares of the trace, by name of a model or service."""
    found = {service.model: service.traffic_share for service in cluster.services}
    return found | {route.name: route.traffic_share for route in cluster.routes}


def longest_of(cluster: Cluster) -> dict[str, int]:
    """The most tokens of a request, by name of a model or service.

    Every model of a service must have room for such a request.
    """
    found = {service.model: service.max_len_tokens for service in cluster.services}
    return found | {r.name: min(found[model] for model in r.models) for r in cluster.routes}


def with_first_minutes(cluster: Cluster, trace: Trace, seed: int) -> dict[str, Demand]:
    """Demand of the trace's first minutes, for models without a declared rate that get requests.

    The rate is that of the five minutes after the first request, and the lengths are their means.
    """
    start_ms = trace.arrivals_ms[0]
    span_s = min(FIRST_S, max(1.0, trace.duration_s - start_ms / 1000.0))
    first_ms = start_ms + FIRST_S * 1000.0
    longest = longest_of(cluster)
    jobs = [  # except requests that the gateway refuses
        job
        for job in schedule(trace, weights(cluster), longest, seed, first_ms)
        if job.input_tokens + job.output_tokens <= longest[job.model]
    ]
    found = {}
    for service in cluster.services:
        mine = [job for job in jobs if job.model == service.model]
        if service.req_per_s > 0.0 or not mine:
            continue
        lengths = Lengths.expected(
            sum(job.input_tokens for job in mine) / len(mine),
            sum(job.output_tokens for job in mine) / len(mine),
        )
        found[service.model] = Demand(service.model, len(mine) / span_s, lengths)
    return found
