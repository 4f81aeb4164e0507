"""The combo ILP of Cauchy (sec. 3.3.2, eq. 16): how many of each combo cover the demand.

Owns building it in PuLP, solving it with HiGHS and reading it back. Knows nothing of where the
demand came from. For the small problems of the reactive loop and of the baselines: PuLP takes
minutes to build what the array form (`optimizer`) takes seconds for.

Rows: goodput per model, GPUs per pool and slice size (see `planning.room`), spot per model.
When the demand cannot be met, goodput comes first: most goodput (the worst served model before
the others), then least weight at that goodput.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import pulp

from autoscaler.domain.checks import finite
from autoscaler.domain.combo import Combo
from autoscaler.domain.slices import SLICE_SIZES
from autoscaler.planning.room import NO_BLOCKS, Blocks, PoolRoom, Room, fits
from autoscaler.planning.usage import is_spot, slices_by_pool, total_slices

# Relative tolerance of the re-check in floating point; HiGHS' own is 1e-6 on integrality.
_TOLERANCE = 1e-6


class CoverStatus(StrEnum):
    """How a cover came about."""

    OPTIMAL = "optimal"
    SHORT = "short"
    LIMIT = "limit"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Column:
    """One kind of combo to decide on. weight: its part of the objective, P_n / C_n in eq. 16.

    at_most: upper bound on its count (-1 = none but the GPUs).
    """

    combo: Combo
    weight: float
    at_most: int = -1


@dataclass(frozen=True, slots=True)
class CoverProblem:
    """Demands in requests/s of raw capacity per model, columns to cover them with, and room.

    spot_limit_req_per_s: per model, most capacity on spot (a model not named has no limit).
    node_usd_per_h_weight: > 0 adds the price of nodes to be rented, times it, to the objective,
    so that choices which fill nodes already paid for win. floors / ceilings: least and most combos
    per model; floors are dropped when the demand cannot be met.
    """

    columns: tuple[Column, ...]
    demand_req_per_s: Mapping[str, float]
    room: Room
    spot_limit_req_per_s: Mapping[str, float] = field(default_factory=dict)
    node_usd_per_h_weight: float = 0.0
    floors: Mapping[str, int] = field(default_factory=dict)
    ceilings: Mapping[str, int] = field(default_factory=dict)
    time_limit_s: float = 10.0
    relative_gap: float = 0.0
    seed: int = 1

    def __post_init__(self) -> None:
        for model, demand in self.demand_req_per_s.items():
            finite(f"demand of {model}", demand, 0.0, 1e9)
        for model, limit in self.spot_limit_req_per_s.items():
            finite(f"spot limit of {model}", limit, 0.0, 1e12)
        for column in self.columns:
            finite(f"weight of {column.combo.id}", column.weight, 0.0, 1e12)
        finite("time_limit_s", self.time_limit_s, 1e-3, 1e5)
        finite("relative_gap", self.relative_gap, 0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Cover:
    """Counts per column (in their order), what they hold, and what is missing per model."""

    status: CoverStatus
    counts: tuple[int, ...]
    req_per_s: Mapping[str, float]
    shortfall_req_per_s: Mapping[str, float]


def solve_cover(problem: CoverProblem) -> Cover:
    """Solve `problem`: cover at least weight; where that cannot be, goodput first.

    Deterministic: one thread, fixed seed; LIMIT says that the time limit struck.
    """
    cheapest = cheapest_cover(problem)
    if cheapest is not None:
        return cheapest
    most = _solve(problem, _Goal.MOST_GOODPUT, {})
    if most is None:
        return _failed(problem)
    reached = _capacity(problem, most[0])
    floor = {m: min(d, reached[m]) for m, d in problem.demand_req_per_s.items()}
    at_least_cost = _solve(problem, _Goal.CHEAPEST, floor)
    return _read_back(problem, *(at_least_cost or most))


def cheapest_cover(problem: CoverProblem) -> Cover | None:
    """The cover at least weight; None where the demand cannot be met (or the solver failed)."""
    solved = _solve(problem, _Goal.CHEAPEST, {})
    return None if solved is None else _read_back(problem, *solved)


class _Goal(StrEnum):
    CHEAPEST = "cheapest"
    MOST_GOODPUT = "most goodput"


def _solve(
    problem: CoverProblem, goal: _Goal, floor: Mapping[str, float]
) -> tuple[tuple[int, ...], bool] | None:
    """Counts and whether they are proven optimal; None when infeasible or the solver failed.

    floor: goodput to reach instead of the demand, when the demand cannot be.
    """
    model = pulp.LpProblem("combos", pulp.LpMinimize)
    x = [
        model.add_variable(f"x{i}", 0, None if c.at_most < 0 else c.at_most, cat="Integer")
        for i, c in enumerate(problem.columns)
    ]
    nodes = _node_variables(model, problem) if problem.node_usd_per_h_weight > 0.0 else {}
    _add_room_rows(model, problem, x, nodes)
    _add_spot_rows(model, problem, x)
    _add_count_rows(model, problem.ceilings, problem, x, -1)
    if goal is _Goal.MOST_GOODPUT:
        served = _add_served(model, problem, x)
        model.setObjective(-_fairly(model, problem, served))
    else:
        _add_goodput_rows(model, problem, x, floor)
        if not floor:
            _add_count_rows(model, problem.floors, problem, x, 1)
        model.setObjective(_weight(problem, x, nodes))
    solver = pulp.HiGHS(
        msg=False,
        threads=1,
        gapRel=problem.relative_gap,
        gapAbs=1e-9,
        timeLimit=problem.time_limit_s,
        random_seed=problem.seed,
    )
    try:
        model.solve(solver)
    except (pulp.PulpSolverError, KeyError):
        # PuLP raises KeyError for HiGHS statuses that it does not list.
        return None
    if model.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
        return None
    counts = tuple(round(variable.value() or 0.0) for variable in x)
    return counts, model.sol_status == pulp.LpSolutionOptimal


def _weight(
    problem: CoverProblem, x: Sequence[pulp.LpVariable], nodes: Mapping[str, pulp.LpVariable]
) -> pulp.LpAffineExpression:
    """Eq. 16's sum of weights, scaled to around 1: P / C is of the order of 1e-6 as it stands."""
    scale = max((c.weight for c in problem.columns), default=0.0) or 1.0
    terms = [c.weight / scale * v for c, v in zip(problem.columns, x, strict=True)]
    terms += [
        problem.node_usd_per_h_weight * problem.room[pool].node_usd_per_h * variable
        for pool, variable in nodes.items()
    ]
    return pulp.lpSum(terms)


def _node_variables(model: pulp.LpProblem, problem: CoverProblem) -> dict[str, pulp.LpVariable]:
    """Nodes to rent per pool, where that costs anything."""
    return {
        pool: model.add_variable(f"nodes{i}", 0, room.new_nodes, cat="Integer")
        for i, (pool, room) in enumerate(sorted(problem.room.items()))
        if room.new_nodes and room.node_usd_per_h > 0.0
    }


def _add_goodput_rows(
    model: pulp.LpProblem,
    problem: CoverProblem,
    x: Sequence[pulp.LpVariable],
    floor: Mapping[str, float],
) -> None:
    """T_m(x_m) >= D_m for every model."""
    for name, demand in problem.demand_req_per_s.items():
        wanted = floor.get(name, demand)
        if wanted > 0.0:
            # Rows are scaled to 1 so that the solver's tolerance is relative to the demand.
            model += _goodput(problem, x, name, 1.0 / wanted) >= 1.0


def _add_served(
    model: pulp.LpProblem, problem: CoverProblem, x: Sequence[pulp.LpVariable]
) -> dict[str, pulp.LpVariable]:
    """Served requests/s z_m <= min(D_m, T_m(x_m)) per model."""
    served = {}
    for i, (name, demand) in enumerate(problem.demand_req_per_s.items()):
        served[name] = model.add_variable(f"z{i}", 0, demand)
        model += _goodput(problem, x, name, 1.0) - served[name] >= 0.0
    return served


def _fairly(
    model: pulp.LpProblem, problem: CoverProblem, served: Mapping[str, pulp.LpVariable]
) -> pulp.LpAffineExpression:
    """The smallest served fraction first, then the mean one: no model starves for another."""
    wanting = {name: z for name, z in served.items() if problem.demand_req_per_s[name] > 0.0}
    least = model.add_variable("least", 0, 1)
    for name, z in wanting.items():
        model += z / problem.demand_req_per_s[name] - least >= 0.0
    mean = [0.01 / len(wanting) / problem.demand_req_per_s[n] * z for n, z in wanting.items()]
    return least + pulp.lpSum(mean)


def _goodput(
    problem: CoverProblem, x: Sequence[pulp.LpVariable], model: str, scale: float
) -> pulp.LpAffineExpression:
    return pulp.lpSum(
        c.combo.req_per_s * scale * v
        for c, v in zip(problem.columns, x, strict=True)
        if c.combo.model == model
    )


def _add_room_rows(
    model: pulp.LpProblem,
    problem: CoverProblem,
    x: Sequence[pulp.LpVariable],
    nodes: Mapping[str, pulp.LpVariable],
) -> None:
    """R_g(x) <= G_g per pool and, for slices to fit on blocks, per slice size (`room.fits`)."""
    use: dict[str, list[tuple[pulp.LpVariable, Blocks]]] = {}
    for column, variable in zip(problem.columns, x, strict=True):
        for pool, blocks in slices_by_pool(column.combo).items():
            use.setdefault(pool, []).append((variable, blocks))
    for pool, users in sorted(use.items()):
        room = problem.room.get(pool, PoolRoom(1, NO_BLOCKS, 0, 0.0))
        rented = nodes.get(pool)
        free = room.blocks if rented is not None else room.all_blocks()
        for least in range(len(SLICE_SIZES)):
            sizes = range(least, len(SLICE_SIZES))
            row = [(v, sum(SLICE_SIZES[s] * blocks[s] for s in sizes)) for v, blocks in users]
            if not any(gpus for _, gpus in row):
                continue
            used = pulp.lpSum(gpus * v for v, gpus in row if gpus)
            have = sum(SLICE_SIZES[s] * free[s] for s in sizes)
            if rented is not None and SLICE_SIZES[least] <= room.per_node:
                model += used - room.per_node * rented <= have
            else:
                model += used <= have


def _add_spot_rows(
    model: pulp.LpProblem, problem: CoverProblem, x: Sequence[pulp.LpVariable]
) -> None:
    """Capacity on spot of a model stays within its limit."""
    for name, limit in problem.spot_limit_req_per_s.items():
        terms = [
            c.combo.req_per_s * v
            for c, v in zip(problem.columns, x, strict=True)
            if c.combo.model == name and is_spot(c.combo)
        ]
        if terms:
            model += pulp.lpSum(terms) <= limit


def _add_count_rows(
    model: pulp.LpProblem,
    limits: Mapping[str, int],
    problem: CoverProblem,
    x: Sequence[pulp.LpVariable],
    sign: int,
) -> None:
    """Combos of a model: at least its floor (sign 1) or at most its ceiling (sign -1)."""
    for name, limit in limits.items():
        terms = [sign * v for c, v in zip(problem.columns, x, strict=True) if c.combo.model == name]
        if terms:
            model += pulp.lpSum(terms) >= sign * limit


def _capacity(problem: CoverProblem, counts: Sequence[int]) -> dict[str, float]:
    capacity = dict.fromkeys(problem.demand_req_per_s, 0.0)
    for column, count in zip(problem.columns, counts, strict=True):
        if column.combo.model in capacity:
            capacity[column.combo.model] += count * column.combo.req_per_s
    return capacity


def _read_back(problem: CoverProblem, counts: tuple[int, ...], proven: bool) -> Cover:
    """The cover of `counts`, re-checked in floating point; FAILED if they do not fit after all."""
    total = total_slices([c.combo for c in problem.columns], counts)
    for pool, wanted in total.items():
        room = problem.room.get(pool)
        free = NO_BLOCKS if room is None else room.all_blocks()
        if not fits(wanted, free):
            return _failed(problem)
    capacity = _capacity(problem, counts)
    short = {
        model: demand - capacity[model]
        for model, demand in problem.demand_req_per_s.items()
        if capacity[model] < demand * (1.0 - _TOLERANCE)
    }
    status = CoverStatus.SHORT if short else CoverStatus.OPTIMAL
    if not proven:
        status = CoverStatus.LIMIT
    return Cover(status, counts, capacity, short)


def _failed(problem: CoverProblem) -> Cover:
    nothing = dict.fromkeys(problem.demand_req_per_s, 0.0)
    return Cover(
        CoverStatus.FAILED,
        (0,) * len(problem.columns),
        nothing,
        dict(problem.demand_req_per_s),
    )
