"""Process that computes the cost of other fleets: `python -m streams.solver.other_fleets` reads
questions from stdin and writes answers to stdout, one per line.

The console starts it while a page is open, so that the controller and its planner keep their time.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.workload import Demand
from autoscaler.optimizer.decomposition.compile_kernels import compile_kernels
from autoscaler.performance.profile_sources import cluster_profile
from autoscaler.planning.fleet_comparison import FleetComparison, FleetCost, OutOfTime
from autoscaler.planning.planning_problem import with_prices
from topics.codec import read_value, write_value
from topics.edge.supervision import end_with_supervisor

LIMIT_S = 20.0
"""Real seconds for one answer. Windows that are not finished by then have no costs in it."""


@dataclass(frozen=True, slots=True)
class WindowQuestion:
    """A window of time. demands: the busiest minute of each model. prices: USD/h of a node, by
    pool, at that time."""

    demands: tuple[Demand, ...]
    prices: dict[str, float]


@dataclass(frozen=True, slots=True)
class Question:
    """Windows of one cluster, the most important first. peaks: the busiest minute of each model
    over all windows. prices: the present prices."""

    cluster: Cluster
    windows: tuple[WindowQuestion, ...]
    peaks: tuple[Demand, ...]
    prices: dict[str, float]


@dataclass(frozen=True, slots=True)
class WindowCosts:
    """Costs of other fleets in one window. by_type: by GPU type; empty if only one can be rented.
    alone, together: None if the cluster declares only one model."""

    by_type: dict[str, FleetCost] = field(default_factory=dict)
    alone: FleetCost | None = None
    together: FleetCost | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """peak: cost of a fleet for all peaks, None if there was no time. windows: in the order of the
    question, None without time. has_owned_nodes: whether owned nodes are part of every fleet."""

    peak: FleetCost | None
    windows: tuple[WindowCosts | None, ...]
    has_owned_nodes: bool
    cpu_s: float


def costs_of(asked: Question, elapsed_s: Callable[[], float], limit_s: float = LIMIT_S) -> Answer:
    """The costs of the windows in `asked`, as far as `limit_s` allows."""
    profile = cluster_profile(asked.cluster)

    def comparison(prices: dict[str, float]) -> FleetComparison:
        known = {pool.id for pool in asked.cluster.pools}
        own = {pool: usd for pool, usd in prices.items() if pool in known}
        return FleetComparison(with_prices(asked.cluster, own), profile, elapsed_s, limit_s)

    now = comparison(asked.prices)
    peak: FleetCost | None = None
    found: list[WindowCosts | None] = [None] * len(asked.windows)
    try:
        peak = now.together(asked.peaks)
        for index, window in enumerate(asked.windows):
            found[index] = _window(asked.cluster, comparison(window.prices), window.demands)
    except OutOfTime:
        pass
    return Answer(peak, tuple(found), now.has_owned_nodes, 0.0)


def _window(cluster: Cluster, fleets: FleetComparison, demands: Sequence[Demand]) -> WindowCosts:
    types = fleets.gpu_types
    several = len(cluster.services) > 1
    return WindowCosts(
        {gpu: fleets.on_one_type(gpu, demands) for gpu in types} if len(types) > 1 else {},
        fleets.each_alone(demands) if several else None,
        fleets.together(demands) if several else None,
    )


def main() -> int:
    """Answer questions until stdin ends."""
    end_with_supervisor()
    os.nice(15)
    # Solver libraries print to stdout, so answers use another descriptor.
    with os.fdopen(os.dup(1), "wb", buffering=0) as out:
        os.dup2(2, 1)
        compile_kernels()  # The time limit of the first answer must not include this.
        for line in sys.stdin.buffer:
            out.write(write_value(_answer(orjson.loads(line))) + b"\n")
    return 0


def _answer(line: Any) -> Answer:
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    found = costs_of(read_value(Question, line), lambda: time.monotonic() - began_s)
    cpu_s = time.process_time() - began_cpu_s
    return Answer(found.peak, found.windows, found.has_owned_nodes, cpu_s)


if __name__ == "__main__":
    sys.exit(main())
