"""What must be left when something is lost: one node, or all spot nodes.

Owns these rows. Knows nothing of the other rows of the problem.

"Left" means: the capacity that remains holds the demand at full load (utilization 1).
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
"""Rows that say whether combos are used of which one node carries more than some level."""

ONE_NODE, ALL_SPOT = "survive one-node", "survive all-spot"

_MIN_LEVELS = 4
_MAX_SWITCHES = 480
"""Steps between the least and the most that a node can carry, over all models and pools: every one
where there are no more of them, else this many shared evenly, at least 4 for each model and pool.
One that is left out asks for more to be left over than is needed: with 4, a quarter of small plans
were dearer, up to twice as much. With all, 10 models on 6 pools are 2% cheaper to 1% dearer after
8 s, and 15 on 18 are 10% dearer after 12 s, as the search does not get as far."""


@dataclass(frozen=True, slots=True)
class _LostNode:
    """One node of `pool`, to be lost: `wanted` requests/s must be left. least: what such a node
    carries in any case; on_it: columns on the pool with what a node of them carries."""

    pool: Pool
    wanted: float
    least: float
    on_it: tuple[tuple[int, float], ...]

    @property
    def most(self) -> float:
        """What a node carries at most."""
        return max((loss for _, loss in self.on_it), default=self.least)

    @property
    def steps(self) -> list[float]:
        """What a node can carry beyond the least, upwards."""
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
    """Rows for what `service` declares to survive; `columns` are those of its combos.

    all-spot: combos without a spot node hold the demand.
    one-node, for every pool p: with b_p the most that one node of p carries of this model, either
    everything together holds the demand + b_p, or everything outside of p holds it. Both rows get
    a switched-off partner column, of which at most one may be on. b_p depends on the combos that
    are chosen, see `_add_levels`. levels: steps of b_p at most; True where that left out some.
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
        most_count = max(1.0, float(nodes * node.pool.per_node))  # or the switch uses nothing
        left_out |= _add_levels(builder, auxiliary, whole, node, most_count, levels)
    return left_out


def _nodes(
    problem: PlanningProblem, service: Service, columns: list[tuple[int, Combo]]
) -> Iterator[_LostNode]:
    """For every pool that `service` may use, the node to be lost; not where what stands survives
    that already."""
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
    """Steps for each model and pool at most; columns: of the combos of each model."""
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
    """Whether what `service` declares must survive the loss of a node."""
    return service.survive == "one-node" and problem.demands[service.model].req_per_s > 0.0


def _add_levels(
    builder: ArrayBuilder[K],
    auxiliary: K,
    whole: int,
    node: _LostNode,
    most_count: float,
    at_most: int,
) -> bool:
    """Less need be left over where the combos that a node could take most with are not chosen.

    `whole` asks for the largest. One switch per step down to the least: it may be on where no
    column above the step is used. True where there are more steps than `at_most`.
    """
    every = node.steps
    levels = every[:: max(1, -(-len(every) // at_most))]
    for low, high in itertools.pairwise([node.least, *levels, node.most]):
        # With no column that loses more than `low`, nothing between `low` and `high` is lost.
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
    """Requests/s of `combos` without those that fall."""
    return req_per_s_of(pair for pair in combos if not falls(pair[0]))


def lost_with_one_node(combo: Combo, pool: Pool) -> float:
    """Most requests/s of combos like `combo` that one node of `pool` can carry.

    A combo is lost as a whole with any of its members.
    """
    smallest = min(member.gpus for member in combo.members if member.pool == pool.id)
    return (pool.per_node // smallest) * combo.req_per_s
