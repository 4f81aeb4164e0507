"""Allocation of whole-node templates to regions (Coral, sec. 4.3), with every instance newly
started.

A template may run in every region, so each pair of a template and a region is a column. The columns
are priced as arrays and not stored, so a hundred models with thousands of templates fit into
memory. They are written out only if not all demand can be served, or if a fleet is running.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from autoscaler.domain.validation import InvalidValue
from autoscaler.optimizer.array_types import Floats, Ints
from autoscaler.optimizer.check import checked
from autoscaler.optimizer.decomposition.groups import Decomposed, Group, fitting, units_of
from autoscaler.optimizer.decomposition.incumbent import Incumbent
from autoscaler.optimizer.decomposition.knapsack import UNITS
from autoscaler.optimizer.decomposition.search import Outcome, solve_decomposed
from autoscaler.optimizer.decomposition.work_limits import SearchLimits
from autoscaler.optimizer.problem import AllocationProblem, check_numbers
from autoscaler.optimizer.result import AllocationResult, SolveOptions, Status
from autoscaler.optimizer.round_and_fill import filled
from autoscaler.optimizer.solve import solve

_MOST_COLUMNS = 2_000_000
"""Largest number of columns to write out; more would take seconds and hundreds of MiB."""
_LEAST_COLUMNS = 5_000
_COLUMNS_PER_S = 400_000
"""Number of columns that can be written out and searched per second of the remaining time."""
_END, _MOST_FOR_END = 1.2, 0.4
"""Time to reserve for a plan over columns, in case the search finds no plan: a multiple of the time
in which this machine has read the pairs into groups, and the largest share of the whole time."""


NOTHING: Ints = np.zeros((0, 4), dtype=np.int64)
"""The running plan of an empty fleet."""


@dataclass(frozen=True, slots=True)
class TemplateProblem:
    """An allocation problem over R regions, C node configurations and G groups of demand.
    `price_usd_per_h` and `available_nodes` (R, C). `demand_req_per_s` (G,). `nodes`: node counts of
    the templates (templates, C), by group. `throughput_req_per_s` (templates,), by group.
    `start_penalty`: K of the paper, the cost of a start as a share of the price of one interval.
    Cost of an instance = its nodes x price x (1 + K)."""

    price_usd_per_h: Floats
    available_nodes: Ints
    demand_req_per_s: Floats
    nodes: tuple[Ints, ...]
    throughput_req_per_s: tuple[Floats, ...]
    start_penalty: float

    def __post_init__(self) -> None:
        if self.price_usd_per_h.ndim != 2:
            raise InvalidValue("price_usd_per_h", self.price_usd_per_h.shape, "regions x configs")
        shape = self.price_usd_per_h.shape
        check_numbers("price_usd_per_h", self.price_usd_per_h, shape, low=0.0)
        check_numbers("available_nodes", self.available_nodes, shape, low=0.0)
        groups = len(self.demand_req_per_s)
        check_numbers("demand_req_per_s", self.demand_req_per_s, (groups,), low=0.0, strict=True)
        check_numbers("K", np.asarray(self.start_penalty, dtype=np.float64), (), low=0.0)
        if len(self.nodes) != groups or len(self.throughput_req_per_s) != groups:
            raise InvalidValue("nodes", len(self.nodes), f"one array for each of {groups} groups")
        for k, (nodes, rate) in enumerate(zip(self.nodes, self.throughput_req_per_s, strict=True)):
            check_numbers(f"nodes_{k}", nodes, (len(nodes), shape[1]), low=0.0)
            check_numbers(f"throughput_{k}", rate, (len(nodes),), low=0.0, strict=True)

    @property
    def columns(self) -> int:
        """Number of pairs of a template and a region."""
        return len(self.price_usd_per_h) * sum(len(nodes) for nodes in self.nodes)


@dataclass(frozen=True, slots=True)
class TemplatePlan:
    """`rows` (n, 4): group, region, template, count; the counts of `result` are in the same order.
    `node_price_usd_per_h` (R, C): multipliers of the nodes, which prove the bound; zeros if the
    bound has another proof."""

    rows: Ints
    result: AllocationResult
    node_price_usd_per_h: Floats


def can_be_served(problem: TemplateProblem) -> bool:
    """Whether a plan that serves all demand was found."""
    return solve_decomposed(_groups_of(problem), SearchLimits(gap=1.0)).plan is not None


def solve_templates(
    problem: TemplateProblem, options: SolveOptions, running: Ints | None = None
) -> TemplatePlan:
    """The cheapest instances that serve every group, or best effort if that is impossible.

    running (r, 4): rows of a running plan. Running instances may be kept without the start penalty,
    up to their count, so the cost reflects the change.
    """
    if running is not None:
        check_running(problem, running)
        return _over_columns(problem, options, running)
    form, reading_s = _timed_groups(problem, options)
    got = solve_decomposed(form, SearchLimits.of(_without_the_end(options, reading_s)))
    if got.plan is None:
        return _over_columns(problem, options, NOTHING, (form, reading_s), got)
    rows = _rows(got.plan, len(problem.price_usd_per_h))
    return _plan(problem, rows, max(0.0, got.bound), got.mu, options, got.limits)


def _timed_groups(problem: TemplateProblem, options: SolveOptions) -> tuple[Decomposed, float]:
    """The groups of `problem`, and the seconds that it took to make them (0 without a clock)."""
    if options.elapsed_s is None:
        return _groups_of(problem), 0.0
    begin_s = options.elapsed_s()
    form = _groups_of(problem)
    return form, options.elapsed_s() - begin_s


def _without_the_end(options: SolveOptions, reading_s: float) -> SolveOptions:
    """`options` without the time that a plan over columns needs. `reading_s`: the time in which the
    pairs were read into groups."""
    if options.elapsed_s is None:
        return options
    end_s = min(_MOST_FOR_END * options.time_limit_s, _END * reading_s)
    return replace(options, time_limit_s=options.time_limit_s - end_s)


def _columns_within(options: SolveOptions, choice_s: float = 0.0) -> int:
    """The number of columns that can be written out in the remaining time, if it takes `choice_s`
    seconds to choose them."""
    left = min(max(0.0, options.left_s() - choice_s) * _COLUMNS_PER_S, _MOST_COLUMNS)
    return max(min(_LEAST_COLUMNS, _MOST_COLUMNS), int(left))


def _over_columns(
    problem: TemplateProblem,
    options: SolveOptions,
    running: Ints,
    groups: tuple[Decomposed, float] | None = None,
    searched: Outcome | None = None,
) -> TemplatePlan:
    """The plan over written-out columns. It starts from the plan `running`, or uses the prices of
    `searched`, an earlier search of `groups` that found no plan. If there is no time for all
    columns, only the ones with the lowest price are used."""
    whole = problem.columns <= _columns_within(options)
    if whole:
        made, keys = columns_of(problem, running)
    else:
        form, reading_s = groups or _timed_groups(problem, options)
        most = _columns_within(options, reading_s)  # a choice reads every pair once more
        mu = np.zeros(len(form.capacity)) if searched is None else searched.mu
        made, keys = _with_running(problem, running, _lowest(form, mu, most))
    start = np.zeros(made.columns, dtype=np.int64)
    start[: len(running)] = running[:, 3]
    if not whole:
        rows = np.arange(len(made.demand_req_per_s))
        start = filled(made, start, rows, np.ones(len(rows)))
    result = solve(made, options, start if start.any() else None)
    bound = -np.inf if searched is None else searched.bound
    known = _with_bound(result, bound) if whole else _with_bound_of_all(result, bound)
    return _decoded(problem, known, keys)


def _decoded(problem: TemplateProblem, result: AllocationResult, keys: Ints) -> TemplatePlan:
    """The plan for the counts of the columns `keys` (n, 3). Equal keys are added up."""
    used = np.flatnonzero(result.counts)
    found, same = np.unique(keys[used], axis=0, return_inverse=True)
    total = np.bincount(same.ravel(), result.counts[used], minlength=len(found)).astype(np.int64)
    rows = np.column_stack([found, total]).reshape(-1, 4)
    no_prices = np.zeros(problem.price_usd_per_h.shape)
    return TemplatePlan(rows, replace(result, counts=total), no_prices)


def _lowest(form: Decomposed, mu: Floats, most: int) -> Ints:
    """The key (group, region, template) of the `most` pairs with the lowest reduced cost: the cost
    at the multipliers `mu` (k,), minus the value of the demand that the pair serves."""
    weight = form.weight(mu)
    regions = form.money.shape[1]
    keys, excess = [], []
    for k, group in enumerate(form.groups):
        least, _ = group.cheapest(weight)
        codes, price = group.near(weight, least, np.inf)
        reduced = price + least[UNITS - group.units[codes // regions]] - least[UNITS]
        if len(codes) > most:
            lowest = np.argpartition(reduced, most)[:most]
            codes, reduced = codes[lowest], reduced[lowest]
        item, region = np.divmod(codes, regions)
        keys.append(np.column_stack([np.full(len(codes), k), region, group.ids[item]]))
        excess.append(reduced)
    order = np.argsort(np.concatenate(excess), kind="stable")[:most]
    chosen = np.concatenate(keys)[order]
    return chosen[np.lexsort(chosen.T[::-1])].astype(np.int64)


def _with_bound(result: AllocationResult, bound: float) -> AllocationResult:
    """`result` with `bound` (USD/h), a bound for plans that serve all demand, if it is higher."""
    if not np.isfinite(bound) or not (result.served_target >= 1.0).all():
        return result
    lower = min(max(result.lower_bound_usd_per_h, bound), result.cost_usd_per_h)
    return replace(result, lower_bound_usd_per_h=lower)


def _with_bound_of_all(result: AllocationResult, bound: float) -> AllocationResult:
    """`result`, a result over some of the columns, with bounds that hold for all columns.

    A plan that serves all demand gets `bound` (USD/h); any other plan gets no bound.
    """
    served = bool((result.served_target >= 1.0).all()) and np.isfinite(bound)
    lower = min(max(0.0, bound), result.cost_usd_per_h) if served else 0.0
    status = Status.LIMIT if result.status in (Status.OPTIMAL, Status.WITHIN_GAP) else result.status
    unknown = np.ones(len(result.served_fraction_bound))
    return replace(
        result, status=status, lower_bound_usd_per_h=lower, served_fraction_bound=unknown
    )


def check_running(problem: TemplateProblem, running: Ints) -> None:
    """Raise InvalidValue for a row with an unknown group, region or template or a wrong count, and
    for a repeated pair."""
    seen = set()
    for row, (k, region, template, count) in enumerate(running.tolist()):
        if not 0 <= k < len(problem.nodes):
            raise InvalidValue(f"running[{row}].group", k, f"0 to {len(problem.nodes) - 1}")
        for name, value, limit in (
            ("region", region, len(problem.price_usd_per_h)),
            ("template", template, len(problem.nodes[k])),
        ):
            if not 0 <= value < limit:
                raise InvalidValue(f"running[{row}].{name}", value, f"0 to {limit - 1}")
        if count < 1:
            raise InvalidValue(f"running[{row}].count", count, "a whole number from 1")
        if (k, region, template) in seen:
            raise InvalidValue(f"running[{row}]", (k, region, template), "each pair once")
        seen.add((k, region, template))


def columns_of(problem: TemplateProblem, running: Ints = NOTHING) -> tuple[AllocationProblem, Ints]:
    """The problem with one column for each pair of a template and a region in which at least one
    instance fits, and the key (group, region, template) of each column (n, 3).

    running (r, 4): rows of a running plan. The first r columns are its instances, which may be kept
    without the start penalty, up to their count.
    """
    regions, _ = problem.price_usd_per_h.shape
    keys = [np.zeros((0, 3), dtype=np.int64)]
    for k, nodes in enumerate(problem.nodes):
        for region in range(regions):
            fits = np.flatnonzero((nodes <= problem.available_nodes[region]).all(axis=1))
            same = np.full(len(fits), 1)
            keys.append(np.column_stack([k * same, region * same, fits]))
    return _with_running(problem, running, np.concatenate(keys))


def _with_running(
    problem: TemplateProblem, running: Ints, keys: Ints
) -> tuple[AllocationProblem, Ints]:
    """The problem over the columns of the `running` plan and the columns `keys` (n, 3)."""
    key = np.concatenate([running[:, :3], keys]).astype(np.int64)
    upper = np.full(len(key), np.inf)
    upper[: len(running)] = running[:, 3]
    return _columns(problem, key, len(running), upper), key


def _columns(problem: TemplateProblem, key: Ints, kept: int, upper: Floats) -> AllocationProblem:
    """The problem over the columns `key` (n, 3). The first `kept` columns pay no start penalty."""
    configs = problem.price_usd_per_h.shape[1]
    group, region, template = key.T
    cost, rate, length = (np.zeros(len(key)) for _ in range(3))
    column, resource, amount = [], [], []
    for k, nodes in enumerate(problem.nodes):
        ids = np.flatnonzero(group == k)
        mine = nodes[template[ids]].astype(np.float64)
        cost[ids] = (mine * problem.price_usd_per_h[region[ids]]).sum(axis=1)
        rate[ids] = problem.throughput_req_per_s[k][template[ids]]
        row, config = np.nonzero(mine)
        column.append(ids[row])
        resource.append(region[ids[row]] * configs + config)
        amount.append(mine[row, config])
        length[ids] = (mine > 0.0).sum(axis=1)
    cost[kept:] *= 1.0 + problem.start_penalty
    order = np.argsort(np.concatenate(column), kind="stable")
    return AllocationProblem(
        cost_usd_per_h=cost,
        upper=upper,
        serve_indptr=np.arange(len(key) + 1),
        serve_row=group,
        serve_rate=rate,
        use_indptr=np.concatenate([[0], np.cumsum(length)]).astype(np.int64),
        use_resource=np.concatenate(resource)[order],
        use_amount=np.concatenate(amount)[order],
        demand_req_per_s=problem.demand_req_per_s.astype(np.float64),
        priority=np.zeros(len(problem.demand_req_per_s), dtype=np.int64),
        capacity=problem.available_nodes.astype(np.float64).ravel(),
    )


def _groups_of(problem: TemplateProblem) -> Decomposed:
    """The problem as groups, whose items may be placed in every region, with the money by
    configuration and region."""
    regions, _ = problem.price_usd_per_h.shape
    capacity = problem.available_nodes.astype(np.float64).ravel()
    groups = []
    for k, nodes in enumerate(problem.nodes):
        row, config = np.nonzero(nodes)
        count = len(nodes)
        indptr = np.zeros(count + 1, dtype=np.int64)
        np.cumsum(np.bincount(row, minlength=count), out=indptr[1:])
        rate = np.ascontiguousarray(problem.throughput_req_per_s[k], dtype=np.float64)
        demand = float(problem.demand_req_per_s[k])
        group = Group(
            indptr=indptr,
            feature=config.astype(np.int32),
            amount=nodes[row, config].astype(np.float64),
            base=np.zeros(count),
            throughput=rate,
            units=units_of(rate, demand),
            allowed=np.ones((count, regions), dtype=np.bool_),
            ids=np.arange(count, dtype=np.int64),
            demand=demand,
        )
        groups.append(fitting(group, capacity))
    money = np.ascontiguousarray(problem.price_usd_per_h.T * (1.0 + problem.start_penalty))
    return Decomposed(tuple(groups), money, capacity)


def _rows(plan: Incumbent, regions: int) -> Ints:
    """(group, region, template, count) of every pair in the plan, in order."""
    rows = [np.zeros((0, 4), dtype=np.int64)]
    for k, pairs in enumerate(plan.pairs):
        code, count = np.unique(pairs, return_counts=True)
        template, region = np.divmod(code, regions)
        rows.append(np.column_stack([np.full(len(code), k), region, template, count]))
    made = np.concatenate(rows).astype(np.int64)
    return made[np.lexsort(made[:, :3].T[::-1])]


def _plan(
    problem: TemplateProblem,
    rows: Ints,
    bound: float,
    mu: Floats,
    options: SolveOptions,
    hit: tuple[str, ...],
) -> TemplatePlan:
    """The plan, checked again in floating point over the columns that it uses."""
    used = _columns(problem, rows[:, :3], 0, np.full(len(rows), np.inf))
    whole = np.ones(len(problem.demand_req_per_s))
    result = checked(used, rows[:, 3], bound, whole, whole, options, hit)
    return TemplatePlan(rows, result, mu.reshape(problem.price_usd_per_h.shape))
