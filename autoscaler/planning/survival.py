"""Survival rows: the capacity that must remain after the loss of one node, or of all spot nodes.

The remaining capacity must serve the demand at full load (utilization 1).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from autoscaler.domain.cluster import Pool, Service
from autoscaler.domain.combo import Combo
from autoscaler.planning.combo_usage import is_spot, req_per_s_of
from autoscaler.planning.planning_problem import PlanningProblem
from autoscaler.planning.problem_builder import ArrayBuilder

K = TypeVar("K")

LOSS_LEVEL = "loss of a node"
"""Name of rows that limit the requests/s on one node while their switch is on."""

ONE_NODE, ALL_SPOT = "survive one-node", "survive all-spot"

_MIN_LEVELS = 4
_MAX_SWITCHES = 480
"""Maximal number of loss steps (switches) over all models and pools, because more would slow down
the search. If there are more, each model and pool gets an equal part, but at least _MIN_LEVELS. A
dropped step makes the rows require more spare capacity than the constraint does."""


@dataclass(frozen=True, slots=True)
class _LostNode:
    """One node of `pool` that may be lost.

    wanted: requests/s that must remain. least: requests/s that the fixed combos lose if the node is
    lost. on_it: columns on the pool, each with the requests/s that it loses.
    """

    pool: Pool
    wanted: float
    least: float
    on_it: tuple[tuple[int, float], ...]

    @property
    def most(self) -> float:
        """Largest requests/s that can be lost with the node."""
        return max((loss for _, loss in self.on_it), default=self.least)

    @property
    def steps(self) -> list[float]:
        """The possible losses in requests/s above `least`, ascending."""
        return sorted({loss for _, loss in self.on_it if loss > self.least})


def add_survival_rows(
    builder: ArrayBuilder[K],
    auxiliary: K,
    problem: PlanningProblem,
    service: Service,
    columns: list[tuple[int, Combo]],
    priority: int,
    levels: int,
) -> bool:
    """Add rows for the loss that `service` must survive. columns: the columns of its combos.
    levels: maximal number of steps of b_p. Return True if steps were dropped.

    all-spot: the combos without a spot node serve the demand. one-node, for every pool p: let b_p
    be the largest rate of this model on one node of p. Either all combos together serve the demand
    + b_p, or all combos outside of p serve the demand. Each of the two rows has a column that
    switches the row off; at most one of these columns may be 1. b_p depends on the chosen combos,
    see `_add_levels`.
    """
    left_out = False
    model, demand = service.model, problem.demands[service.model].req_per_s
    if demand <= 0.0 or service.survive == "none":
        return False
    standing = problem.fixed_combos(model)
    if service.survive == "all-spot":
        reached = _surviving_req_per_s(problem.running_combos(model), is_spot)
        missing = problem.with_hysteresis(demand, reached) - _surviving_req_per_s(standing, is_spot)
        if missing > 1e-9 * demand:
            row = builder.demand(ALL_SPOT, model, missing, priority)
            for index, combo in columns:
                if not is_spot(combo):
                    builder.serve(index, row, combo.req_per_s)
        return False
    for node in _nodes(problem, service, columns):
        pool_id, wanted = node.pool.id, node.wanted

        def falls(combo: Combo, pool_id: str = pool_id) -> bool:
            return pool_id in combo.gpus_by_pool()

        everything = wanted + node.most - _surviving_req_per_s(standing)
        rest = max(wanted - _surviving_req_per_s(standing, falls), 1e-9 * wanted)
        whole = builder.demand(ONE_NODE, model, everything, priority)
        outside = builder.demand(ONE_NODE, model, rest, priority)
        for index, combo in columns:
            builder.serve(index, whole, combo.req_per_s)
            if not falls(combo):
                builder.serve(index, outside, combo.req_per_s)
        either = builder.resource("one of two", f"{model} {pool_id}", 1.0)
        builder.column(auxiliary, 0.0, 1.0, {whole: everything}, {either: 1.0})
        builder.column(auxiliary, 0.0, 1.0, {outside: rest}, {either: 1.0})
        nodes = problem.nodes_now(node.pool) + problem.rentable_nodes(node.pool)
        # The switch must use a positive amount of the row, so this is not 0.
        most_count = max(1.0, float(nodes * node.pool.per_node))
        left_out |= _add_levels(builder, auxiliary, whole, node, most_count, levels)
    return left_out


def _nodes(
    problem: PlanningProblem, service: Service, columns: list[tuple[int, Combo]]
) -> Iterator[_LostNode]:
    """For every pool that `service` may use, a node whose loss the plan must survive.

    Pools are skipped if the fixed combos survive the loss.
    """
    model, demand = service.model, problem.demands[service.model].req_per_s
    running, standing = problem.running_combos(model), problem.fixed_combos(model)
    used = {pool for _, combo in columns for pool in combo.gpus_by_pool()}
    used |= {pool for combo, _ in standing for pool in combo.gpus_by_pool()}
    for pool in problem.cluster.pools:
        if pool.id not in used:
            continue

        def falls(combo: Combo, pool_id: str = pool.id) -> bool:
            return pool_id in combo.gpus_by_pool()

        def lost(combos: Iterable[Combo], where: Pool = pool) -> float:
            on_it = (c for c in combos if where.id in c.gpus_by_pool())
            return max((lost_with_one_node(combo, where) for combo in on_it), default=0.0)

        reached = _surviving_req_per_s(running) - lost(combo for combo, _ in running)
        wanted = problem.with_hysteresis(demand, max(reached, _surviving_req_per_s(running, falls)))
        least = lost(combo for combo, _ in standing)
        if wanted > max(
            _surviving_req_per_s(standing) - least, _surviving_req_per_s(standing, falls)
        ) * (1.0 + 1e-9):
            on_it = ((i, max(least, lost_with_one_node(c, pool))) for i, c in columns if falls(c))
            yield _LostNode(pool, wanted, least, tuple(on_it))


def max_loss_levels(
    problem: PlanningProblem, columns: Mapping[str, list[tuple[int, Combo]]]
) -> int:
    """Maximal number of loss steps per model and pool. columns: by model, its combos with their
    column indices."""
    services = [problem.cluster.service(model) for model in columns]
    steps = [
        len(node.steps)
        for service in services
        if _loses_nodes(problem, service)
        for node in _nodes(problem, service, columns[service.model])
    ]
    if sum(steps) <= _MAX_SWITCHES:
        return max([_MIN_LEVELS, *steps])
    return max(_MIN_LEVELS, _MAX_SWITCHES // len(steps))


def _loses_nodes(problem: PlanningProblem, service: Service) -> bool:
    """Whether `service` must survive the loss of a single node and has a demand."""
    return service.survive == "one-node" and problem.demands[service.model].req_per_s > 0.0


def _add_levels(
    builder: ArrayBuilder[K],
    auxiliary: K,
    whole: int,
    node: _LostNode,
    most_count: float,
    at_most: int,
) -> bool:
    """Add switches that lower the required capacity if no combo with a large loss per node is used.
    The row `whole` requires the demand plus the largest loss. Each switch lowers the loss to the
    next smaller step; it may be on only if no column with a loss above that step is used. Return
    True if there are more steps than `at_most`.
    """
    every = node.steps
    levels = every[:: max(1, -(-len(every) // at_most))]
    for low, high in itertools.pairwise([node.least, *levels, node.most]):
        # If no column with a loss above `low` is used, the loss is at most `low` instead of `high`.
        if high <= low:
            continue
        off = builder.resource(LOSS_LEVEL, "", most_count)
        for index, loss in node.on_it:
            if loss > low:
                builder.use(index, off, 1.0)
        builder.column(auxiliary, 0.0, 1.0, {whole: high - low}, {off: most_count})
    return len(levels) < len(every)


def _surviving_req_per_s(
    combos: Iterable[tuple[Combo, int]], falls: Callable[[Combo], bool] = lambda _: False
) -> float:
    """Requests/s of the `combos` that are not lost. falls: returns whether a combo is lost."""
    return req_per_s_of(pair for pair in combos if not falls(pair[0]))


def lost_with_one_node(combo: Combo, pool: Pool) -> float:
    """The most requests/s that the loss of one node of `pool` can cost: the node is full of members
    of `combo`, each from a different copy.

    The loss of any member stops the whole combo.
    """
    smallest = min(member.gpus for member in combo.members if member.pool == pool.id)
    return (pool.per_node // smallest) * combo.req_per_s
