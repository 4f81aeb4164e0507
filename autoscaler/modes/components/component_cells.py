"""Cells as combos: a model of components is planned, placed and moved like any other model.

A cell is a set of deployments on a few GPUs that serves the whole mix without other cells
(Cornserve sec. 4.3). One linear program gives its rate and its paths. The candidates are cells of
1, 2, 4, 8, ... GPUs (Algorithm 1), extended to several GPU types, regions and markets. The planner
covers the demand with cells exactly, at current prices and with transition costs, whereas Algorithm
2 is greedy. If the mix of request types changes, the same cells get other rates and other paths.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autoscaler.domain.cluster import Market, Pool
from autoscaler.domain.combo import CellHop, CellPath, Combo, ComboMember
from autoscaler.domain.component_graph import ComponentGraph
from autoscaler.domain.validation import InvalidValue, finite
from autoscaler.domain.workload import Phase
from autoscaler.modes.components.component_program import ComponentProblem, component_problem
from autoscaler.optimizer.activity_lp import Mix, Unfound, most_work
from autoscaler.planning.combo_names import Member, format_combo_id, parse_instances
from autoscaler.planning.instance_options import gpu_usd_per_h

SIZES = (1, 2, 4, 8, 16)
"""Sizes of cells in GPUs. Larger demands take several cells."""
# ids in records have at most 200 characters; 20 remain for the group's serial number
_MAX_NAME_CHARS = 180
_MAX_INSTANCES = 64
"""Instances of one deployment in a cell, which limits the program."""
_GAP, _SECONDS = 1e-3, 2.0
"""Gap and seconds at which the search for one cell stops."""
_ROUNDING = 1e-9
"""Relative error of rates that is rounding."""
_MAX_CACHED = 64
"""Sets of cells that are kept, which limits memory."""
_cache: dict[str, tuple[Combo, ...]] = {}


@dataclass(frozen=True, slots=True)
class Cell:
    """A set of `gpus` GPUs that runs a whole model and serves `req_per_s` requests/s of its mix."""

    gpus: int
    req_per_s: float


def efficient_cells(req_per_s: Mapping[int, float]) -> tuple[Cell, ...]:
    """The filter of Algorithm 1. A cell is kept if it serves more than the same number of GPUs in
    cells of the next smaller kept size.

    req_per_s: best rate by number of GPUs (1, 2, 4, ...). Sizes that cannot hold the model (0
    req/s) are dropped.
    """
    kept: list[Cell] = []
    for gpus in sorted(req_per_s):
        rate = finite(f"cell of {gpus} GPUs: req_per_s", req_per_s[gpus], 0.0, 1e12)
        if rate <= 0.0:
            continue
        if not kept or rate > gpus // kept[-1].gpus * kept[-1].req_per_s * (1.0 + _ROUNDING):
            kept.append(Cell(gpus, rate))
    return tuple(kept)


def candidate_cells(graph: ComponentGraph, pools: Sequence[Pool]) -> tuple[Combo, ...]:
    """Candidate cells for `graph` on `pools`, most requests per USD first. Spot nodes and other
    nodes of a region are searched separately. For each number of GPUs there is the best cell on a
    single pool, and the best cell of equal cost that may combine pools. A cell is dropped if
    smaller cells serve more at the same cost. Raises InvalidValue if some component fits on no
    pool.
    """
    key = repr((graph, pools))
    found = _cache.get(key)
    if found is None:
        if len(_cache) >= _MAX_CACHED:
            _cache.clear()
        found = _cache[key] = tuple(_cells(graph, pools))
    return found


def evaluate_cell(combo_id: str, graph: ComponentGraph, pools: Iterable[Pool]) -> Combo:
    """The cell with id `combo_id` at the request mix of `graph`. Raises InvalidValue if no such
    cell is possible."""
    model, instances = parse_instances(combo_id)
    members = [member for own in instances for member in own]
    if model != graph.model or not all(member.deployment for member in members):
        raise InvalidValue("combo", combo_id, f"a cell of model {graph.model}")
    counts = {(m.deployment, m.pool): m.count for m in members}
    # A running cell stays valid even if its pool offers no more nodes.
    there = tuple(replace(pool, max_nodes=max(1, pool.max_nodes)) for pool in pools)
    made = _cell(graph, there, counts)
    if made is None:
        raise InvalidValue("combo", combo_id, f"a cell that serves all types of {graph.model}")
    return made


def _cells(graph: ComponentGraph, pools: Sequence[Pool]) -> Iterator[Combo]:
    """The cells of Algorithm 1 for each set of pools."""
    found: dict[str, Combo] = {}
    for together in _pool_sets(pools):
        problem = _problem(graph, together)
        if problem is None:
            continue
        most_usd = max(gpu_usd_per_h(pool) for pool in together)
        made: dict[int, Combo] = {}
        for size in SIZES:
            if size > sum(pool.max_nodes * pool.per_node for pool in together):
                break
            mix = _best(problem, size * most_usd)
            counts = _counts(problem, mix) if mix is not None else {}
            cell = _cell(graph, together, counts) if counts else None
            if cell is not None:
                made[size] = cell
        for kept in efficient_cells({size: cell.req_per_s for size, cell in made.items()}):
            found[made[kept.gpus].id] = made[kept.gpus]
    by_id = {pool.id: pool for pool in pools}

    def usd_per_req(cell: Combo) -> tuple[float, str]:
        usd = sum(n * gpu_usd_per_h(by_id[pool]) for pool, n in cell.gpus_by_pool().items())
        return usd / cell.req_per_s, cell.id

    return iter(sorted(found.values(), key=usd_per_req))


def _pool_sets(pools: Sequence[Pool]) -> Iterator[tuple[Pool, ...]]:
    """The sets of pools for cells: each pool alone and, per region, all spot pools and all other
    pools."""
    for region in sorted({pool.region for pool in pools}):
        for spot in (False, True):
            here = tuple(
                pool
                for pool in pools
                if pool.region == region and (pool.market is Market.SPOT) == spot
            )
            for pool in here:
                yield (pool,)
            if len(here) > 1:
                yield here


def _problem(graph: ComponentGraph, pools: tuple[Pool, ...]) -> ComponentProblem | None:
    """The program over slices; it counts single GPUs and ignores node boundaries. None if `pools`
    do not hold all components."""
    free = replace(graph, req_per_s=1.0, spot_share=1.0)
    try:
        return component_problem((free,), pools)
    except InvalidValue:
        return None  # these pools alone do not hold all components


def _best(problem: ComponentProblem, usd_per_h: float) -> Mix | None:
    pools = problem.pools
    found = most_work(
        replace(
            problem.mix,
            node_gpus=np.ones(len(pools)),
            node_usd_per_h=np.array([gpu_usd_per_h(pool) for pool in pools]),
            node_max=np.array([float(pool.max_nodes * pool.per_node) for pool in pools]),
            budget_usd_per_h=usd_per_h * (1.0 + 1e-9),
            together=np.zeros((0, 0)),
            together_max=np.zeros(0),
        ),
        _SECONDS,
        _GAP,
    )
    return None if isinstance(found, Unfound) else found


def _counts(problem: ComponentProblem, mix: Mix) -> dict[tuple[str, str], int]:
    """The number of instances by (deployment, pool); empty if some count exceeds the limit of a
    cell."""
    counts = {
        (placed.deployment.name, placed.pool.id): int(n)
        for placed, n in zip(problem.placed, mix.copies, strict=True)
        if n
    }
    return counts if max(counts.values(), default=0) <= _MAX_INSTANCES else {}


def _cell(
    graph: ComponentGraph, pools: tuple[Pool, ...], counts: dict[tuple[str, str], int]
) -> Combo | None:
    """The cell of these instances: its rate is the largest multiple of the mix that they serve."""
    problem = _problem(graph, tuple(pool for pool in pools if any(p == pool.id for _, p in counts)))
    if problem is None:
        return None
    n = len(problem.placed)
    most = [counts.get((one.deployment.name, one.pool.id), 0) for one in problem.placed]
    if sum(most) != sum(counts.values()):
        return None  # a deployment or pool of the cell is no longer declared
    mix = most_work(
        replace(
            problem.mix,
            usage=np.eye(n),
            node_gpus=np.ones(n),
            node_usd_per_h=np.zeros(n),
            node_max=np.array(most, dtype=float),
            budget_usd_per_h=np.inf,
            together=np.zeros((0, 0)),
            together_max=np.zeros(0),
        ),
        _SECONDS,
        1e-6,
    )
    if isinstance(mix, Unfound):
        return None
    members = tuple(
        ComboMember(
            Phase.AGGREGATED,
            placed.pool.id,
            placed.deployment.gpus,
            count,
            mix.multiple / count,
            deployment=placed.deployment.name,
        )
        for placed, count in zip(problem.placed, most, strict=True)
        if count
    )
    named = [[Member(m.phase, m.gpus, m.pool, m.count, deployment=m.deployment)] for m in members]
    name = format_combo_id(graph.model, sorted(named, key=str))
    if len(name) > _MAX_NAME_CHARS:
        return None
    of = {pool.id: pool for pool in pools}
    paths = tuple(_paths(graph, problem, mix))
    return Combo(
        id=name,
        model=graph.model,
        region=of[members[0].pool].region,
        members=members,
        req_per_s=mix.multiple,
        usd_per_h=sum(
            m.gpus * m.count * of[m.pool].price_usd_per_h / of[m.pool].per_node for m in members
        ),
        ttft_ms=1000.0 * max(_seconds(graph, path, of) for path in paths),
        tpot_ms=0.0,
        start_s=max(
            placed.deployment.start_s + placed.pool.provision_s
            for placed, count in zip(problem.placed, most, strict=True)
            if count
        ),
        paths=paths,
    )


def _paths(graph: ComponentGraph, problem: ComponentProblem, mix: Mix) -> Iterator[CellPath]:
    per_req = replace(graph, req_per_s=1.0).rates()
    rates = dict(zip((kind.name for kind in graph.types), per_req, strict=True))
    for a, (_, kind, on) in enumerate(problem.activities):
        rate = rates[kind.name] * mix.multiple * float(mix.fractions[a])
        if rate > 1e-9:
            hops, left = [], kind.uses
            for n in on:
                placed = problem.placed[n]
                runs = placed.deployment.components & left
                left -= runs
                hops.append(CellHop(placed.deployment.name, placed.pool.id, tuple(sorted(runs))))
            yield CellPath(kind.name, rate, tuple(hops))


def _seconds(graph: ComponentGraph, path: CellPath, pools: dict[str, Pool]) -> float:
    """Seconds that a request on `path` takes in an otherwise idle cell."""
    return sum(
        graph.seconds(pools[hop.pool].gpu.name)[hop.deployment, frozenset(hop.runs)]
        for hop in path.hops
    )
