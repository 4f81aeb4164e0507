"""Component graphs: the placement of a model's components, and the paths of its requests.

Cornserve (sec. 4.2, App. B) minimises the number of GPUs of one type. Here a deployment uses a node
slice of a pool with a price, so the program covers several GPU types, regions and budgets. A path
stays in one region. The program (`optimizer.activity_lp`) either maximises the throughput for a
budget or minimises the cost of a rate. Several models share the pools.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from autoscaler.domain.cluster import Market, Pool
from autoscaler.domain.component_graph import (
    ComponentGraph,
    Deployment,
    Path,
    RequestType,
)
from autoscaler.domain.validation import InvalidValue
from autoscaler.optimizer.activity_lp import Mix, MixProblem, Unfound, least_cost, most_work
from autoscaler.planning.ceilings import ceilings

_MOST_ACTIVITIES = 20_000
"""Paths over instances that a program may have, which limits its time."""
_MORE_TIME = "more seconds: no plan was found in these"


@dataclass(frozen=True, slots=True)
class PlacedDeployment:
    """One instance of a deployment on a pool."""

    model: str
    deployment: Deployment
    pool: Pool


@dataclass(frozen=True, slots=True)
class Route:
    """The instances through which `fraction` of the requests of a type pass, in this order."""

    model: str
    type: RequestType
    hops: tuple[PlacedDeployment, ...]
    fraction: float


@dataclass(frozen=True, slots=True)
class ComponentPlan:
    """Instances and the paths of requests.

    instances: with their counts. nodes: by pool id. multiple: planned rate / declared rate (1 =
    exactly the declared rates). bound: upper bound of the multiple if the plan is for a budget
    (None: unknown), lower bound of the USD/h if it is for a rate.
    """

    instances: tuple[tuple[PlacedDeployment, int], ...]
    nodes: Mapping[str, int]
    routes: tuple[Route, ...]
    multiple: float
    usd_per_h: float
    bound: float | None
    solved: bool


@dataclass(frozen=True, slots=True)
class ComponentProblem:
    """Instances (n) and activities (a). An activity is a path of a request type over instances, one
    per hop."""

    pools: tuple[Pool, ...]
    placed: tuple[PlacedDeployment, ...]
    activities: tuple[tuple[str, RequestType, tuple[int, ...]], ...]
    mix: MixProblem


def component_problem(
    graphs: tuple[ComponentGraph, ...],
    pools: tuple[Pool, ...],
    budget_usd_per_h: float = math.inf,
) -> ComponentProblem:
    """The problem of the models `graphs` on `pools`. Raises InvalidValue, naming the request type,
    if no path serves one."""
    made = _Activities(pools)
    for graph in graphs:
        made.add(graph)
    busy = np.zeros((len(made.placed), len(made.activities)))
    for a, takes in enumerate(made.busy):
        for n, each in takes.items():
            busy[n, a] = each
    type_of = np.array(made.type_of, dtype=np.int64)
    firm = [graph for graph in graphs if graph.spot_share < 1.0]
    on_spot = np.array(
        [
            [
                model == graph.model and any(made.placed[n].pool.market is Market.SPOT for n in on)
                for model, _, on in made.activities
            ]
            for graph in firm
        ],
        dtype=float,
    )
    asks = np.array([[model == graph.model for model in made.models] for graph in firm], float)
    together, together_max = ceilings(pools)
    mix = MixProblem(
        busy=busy,
        type_of=type_of,
        work=np.array(made.work),
        usage=np.array(
            [
                [one.deployment.gpus * (one.pool.id == pool.id) for one in made.placed]
                for pool in pools
            ],
            dtype=float,
        ).reshape(len(pools), len(made.placed)),
        node_gpus=np.array([float(pool.per_node) for pool in pools]),
        node_usd_per_h=np.array([pool.price_usd_per_h for pool in pools]),
        node_max=np.array([float(pool.max_nodes) for pool in pools]),
        budget_usd_per_h=budget_usd_per_h,
        together=together,
        together_max=together_max,
        capped=on_spot,
        capped_types=asks,
        capped_share=np.array([graph.spot_share for graph in firm]),
    )
    return ComponentProblem(pools, tuple(made.placed), tuple(made.activities), mix)


class _Activities:
    """Collects the possible instances of all models and the possible paths of their requests."""

    def __init__(self, pools: tuple[Pool, ...]) -> None:
        self.pools = pools
        self.placed: list[PlacedDeployment] = []
        self.activities: list[tuple[str, RequestType, tuple[int, ...]]] = []
        self.busy: list[dict[int, float]] = []
        self.type_of: list[int] = []
        self.work: list[float] = []
        self.models: list[str] = []

    def add(self, graph: ComponentGraph) -> None:
        """Add all possible instances and paths of one model."""
        first = len(self.placed)
        here = [
            PlacedDeployment(graph.model, option, pool)
            for option in graph.deployments
            for pool in self.pools
            if pool.gpu.name in option.req_per_s
            and option.gpus <= pool.largest_slice
            and pool.max_nodes > 0
        ]
        self.placed += here
        seconds = {gpu: graph.seconds(gpu) for gpu in {one.pool.gpu.name for one in here}}
        for kind, rate in zip(graph.types, graph.rates(), strict=True):
            before = len(self.activities)
            for path in graph.paths(kind):
                for on in _places(path, here, first):
                    self._activity(graph.model, kind, path, on, seconds)
            if len(self.activities) == before:
                what = f"model {graph.model}: type {kind.name}"
                raise InvalidValue(what, sorted(kind.uses), "components deployed on declared GPUs")
            self.work.append(rate)
            self.models.append(graph.model)

    def _activity(
        self,
        model: str,
        kind: RequestType,
        path: Path,
        on: tuple[int, ...],
        seconds: Mapping[str, Mapping[tuple[str, frozenset[str]], float]],
    ) -> None:
        if len(self.activities) >= _MOST_ACTIVITIES:
            allowed = f"at most {_MOST_ACTIVITIES} ways to serve all requests"
            raise InvalidValue(f"model {model}: paths", "more", allowed)
        takes: dict[int, float] = {}
        for hop, n in zip(path, on, strict=True):
            each = seconds[self.placed[n].pool.gpu.name][hop.deployment.name, hop.role]
            takes[n] = takes.get(n, 0.0) + each
        self.activities.append((model, kind, on))
        self.busy.append(takes)
        self.type_of.append(len(self.work))


def cheapest_for_rate(
    problem: ComponentProblem, seconds: float = 60.0, gap: float = 1e-4
) -> ComponentPlan:
    """The cheapest plan that serves the declared rates. Raises InvalidValue if the pools cannot
    serve them, or if the time limit ended the search before it found a plan.
    """
    found = least_cost(problem.mix, 1.0, seconds, gap)
    if isinstance(found, Unfound):
        if found is Unfound.LIMIT:
            raise InvalidValue("time limit", seconds, _MORE_TIME)
        raise InvalidValue("req_per_s", float(problem.mix.work.sum()), "what the pools can serve")
    return _plan(problem, found.mix, found.bound_usd_per_h)


def most_for_budget(
    problem: ComponentProblem, seconds: float = 60.0, gap: float = 1e-4
) -> ComponentPlan:
    """The plan with the largest multiple of the declared rates within the budget. Raises
    InvalidValue if there is no plan, or if the time limit ended the search before it found one.
    """
    found = most_work(problem.mix, seconds, gap)
    if isinstance(found, Unfound):
        if found is Unfound.LIMIT:
            raise InvalidValue("time limit", seconds, _MORE_TIME)
        least = "enough for one instance of each component"
        raise InvalidValue("budget", problem.mix.budget_usd_per_h, least)
    return _plan(problem, found, found.bound)


def _places(path: Path, here: list[PlacedDeployment], first: int) -> Iterator[tuple[int, ...]]:
    """Every choice of one instance (index) per hop of `path`, all in one region."""
    options = [
        [first + i for i, one in enumerate(here) if one.deployment == hop.deployment]
        for hop in path
    ]
    region = {first + i: one.pool.region for i, one in enumerate(here)}
    return (on for on in product(*options) if len({region[n] for n in on}) == 1)


def _plan(problem: ComponentProblem, mix: Mix, bound: float | None) -> ComponentPlan:
    return ComponentPlan(
        instances=tuple(
            (one, int(n)) for one, n in zip(problem.placed, mix.copies, strict=True) if n
        ),
        nodes={p.id: int(n) for p, n in zip(problem.pools, mix.nodes, strict=True) if n},
        routes=tuple(
            Route(model, kind, tuple(problem.placed[n] for n in on), float(mix.fractions[a]))
            for a, (model, kind, on) in enumerate(problem.activities)
            if mix.fractions[a] > 0.0
        ),
        multiple=mix.multiple,
        usd_per_h=mix.usd_per_h,
        bound=bound,
        solved=mix.solved,
    )
