"""Simulation of requests to a model of components, in virtual time: the capacity of a plan.

Each instance has a queue and serves one request at a time, as a simulated stage does. The gateways'
code (`serving.paths`) samples the paths; for comparison, `carry_by_queues` routes by the queues.
Deterministic: arrivals and sizes are given.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from autoscaler.modes.components.component_graph import ComponentGraph
from autoscaler.modes.components.component_paths import ComponentPaths
from topics.records import Endpoint, RouteGroup

Seconds = Callable[[str, tuple[str, ...]], float]
"""Seconds that a request of mean size takes on one instance, by (stage,
components that it runs).
"""


@dataclass(frozen=True, slots=True)
class GraphRequest:
    """One request. size: size of its media relative to the mean. Encoders take proportionally
    longer.
    """

    at_s: float
    kind: str
    size: float = 1.0


@dataclass(slots=True)
class Carried:
    """Result of a run. latencies_s: of all requests, by arrival. busy_s: by instance. taken: number
    of requests by kind and path."""

    latencies_s: list[float] = field(default_factory=list)
    busy_s: dict[str, float] = field(default_factory=dict)
    taken: dict[tuple[str, str], int] = field(default_factory=dict)

    def share_within(self, limit_s: float) -> float:
        """The share of requests with an answer within `limit_s`."""
        good = sum(latency <= limit_s for latency in self.latencies_s)
        return good / len(self.latencies_s) if self.latencies_s else 1.0


def carry(
    groups: Iterable[RouteGroup],
    seconds: Seconds,
    requests: Sequence[GraphRequest],
    sized: frozenset[str] = frozenset(),
) -> Carried:
    """Send `requests`, sorted by time, through `groups` along planned paths.

    sized: components whose time is proportional to the size of a request's media.
    """
    paths, free, found = ComponentPaths(), dict[Endpoint, float](), Carried()
    paths.apply(groups)
    latencies = [0.0] * len(requests)
    agenda = [(request.at_s, n, 0) for n, request in enumerate(requests)]
    heapq.heapify(agenda)
    ways = {}
    while agenda:
        now_s, n, hop = heapq.heappop(agenda)
        request = requests[n]
        if not hop:
            way = paths.sample(request.kind)
            assert way is not None
            ways[n] = way
            key = request.kind, way.name
            found.taken[key] = found.taken.get(key, 0) + 1
        way = ways[n]
        at = paths.endpoint(way, hop)
        assert at is not None
        step = way.hops[hop]
        done_s = _work(
            found, free, at, now_s, _took(seconds, step.stage, step.runs, request, sized)
        )
        if hop + 1 < len(way.hops):
            heapq.heappush(agenda, (done_s, n, hop + 1))
        else:
            latencies[n] = done_s - request.at_s
            del ways[n]
    found.latencies_s = latencies
    return found


def carry_by_queues(
    groups: Iterable[RouteGroup],
    graph: ComponentGraph,
    seconds: Seconds,
    requests: Sequence[GraphRequest],
    sized: frozenset[str] = frozenset(),
) -> Carried:
    """Send `requests` by the shortest queue.

    At every hop, a request goes to the instance with the least time until completion, divided by
    the number of its components that the instance runs.
    """
    free, found = dict[Endpoint, float](), Carried()
    stages = [(s.name, end) for group in groups for s in group.stages for end in s.endpoints]
    of = {option.name: option for option in graph.deployments}
    kinds = {kind.name: kind for kind in graph.types}
    latencies = [0.0] * len(requests)
    agenda: list[tuple[float, int]] = [(r.at_s, n) for n, r in enumerate(requests)]
    heapq.heapify(agenda)
    left = {n: kinds[request.kind].uses for n, request in enumerate(requests)}
    while agenda:
        now_s, n = heapq.heappop(agenda)
        best: tuple[float, int, str, Endpoint, frozenset[str], float] | None = None
        for order, (stage, end) in enumerate(stages):
            role = of[stage].components & left[n]
            if not role or any((graph.after[c] & left[n]) - role for c in role):
                continue
            took = _took(seconds, stage, tuple(sorted(role)), requests[n], sized)
            # Per component, because an instance that does more of the request may take longer.
            done = (max(now_s, free.get(end, 0.0)) - now_s + took) / len(role)
            if best is None or (done, order) < best[:2]:
                best = done, order, stage, end, role, took
        assert best is not None
        _, _, _, end, role, took = best
        done_s = _work(found, free, end, now_s, took)
        left[n] = left[n] - role
        if left[n]:
            heapq.heappush(agenda, (done_s, n))
        else:
            latencies[n] = done_s - requests[n].at_s
    found.latencies_s = latencies
    return found


def seconds_on(graph: ComponentGraph, gpu: str) -> Seconds:
    """The times of `graph` by deployment, if all stages run on GPUs of the kind `gpu`."""
    times = graph.seconds(gpu)
    return lambda stage, runs: times[stage, frozenset(runs)]


def _took(
    seconds: Seconds,
    stage: str,
    runs: tuple[str, ...],
    request: GraphRequest,
    sized: frozenset[str],
) -> float:
    """Seconds that the stage takes: the mean, with the part of the encoders scaled by the size of
    the media.
    """
    mean = seconds(stage, runs)
    encoders = sized & set(runs)
    if not encoders:
        return mean
    return mean * (1.0 + (request.size - 1.0) * len(encoders) / len(runs))


def _work(
    found: Carried, free: dict[Endpoint, float], at: Endpoint, now_s: float, took_s: float
) -> float:
    """Occupy instance `at` for `took_s` after its earlier work; returns the time of completion."""
    done_s = max(now_s, free.get(at, 0.0)) + took_s
    free[at] = done_s
    found.busy_s[at.instance] = found.busy_s.get(at.instance, 0.0) + took_s
    return done_s
