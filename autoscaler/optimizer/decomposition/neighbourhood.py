"""Neighbourhood search: solve some groups again within the capacity that the other groups leave.

Each neighbourhood is a small allocation problem with its own multipliers, pools and MIP, under
deterministic work limits. A better solution replaces the old one. The global bound is used only to
end the search.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from autoscaler.optimizer.array_types import Floats, Ints
from autoscaler.optimizer.decomposition.cover_milp import choose
from autoscaler.optimizer.decomposition.cover_pools import Covers, Scene, items_within, joined, pool
from autoscaler.optimizer.decomposition.dual_ascent import ascend
from autoscaler.optimizer.decomposition.groups import Decomposed, fitting
from autoscaler.optimizer.decomposition.incumbent import Incumbent
from autoscaler.optimizer.decomposition.work_limits import GROUPS, SearchLimits, Work

LARGEST = 9
"""Largest number of groups that are freed at once in a problem of up to `GROUPS` groups."""
WIDER = (4, 8, 12, 18)
"""Numbers of groups that are freed at once in larger problems. There, small neighbourhoods improve
little once the plan fits, and it is impossible to free all groups at once."""
LOCAL_POOL = 200
"""Number of covers per group in a neighbourhood's MIP."""
LOCAL_ITEMS = 60
"""Number of single pairs to add for a group that has too many covers to list."""
LOCAL_TESTS = 3_000_000
"""Item tests per group in a neighbourhood."""


PATIENCE = 0.6
"""If no plan fits after this share of the remaining time, the search ends."""


@dataclass(frozen=True, slots=True)
class Search:
    """Input of the search: multipliers, the proven bound, marks, and the penalties for exceeded
    capacities."""

    mu: Floats
    bound: float
    marks: Ints
    penalty: Floats


def improve(
    problem: Decomposed, search: Search, start: Incumbent, limits: SearchLimits, columns: int
) -> tuple[Incumbent, Work, tuple[str, ...]]:
    """The best plan found, the work done, and the limits that ended the search. columns: largest
    number of MIP columns that the search may use."""
    generator = np.random.default_rng(limits.seed)
    best, work = start, Work()
    count = len(problem.groups)
    sizes = _sizes(count)
    # If no plan fits yet, leave time for the best-effort search that follows.
    patience = limits.within(PATIENCE)
    step, failures, failed = 0, 0, set[tuple[int, ...]]()
    for _ in range(limits.rounds):
        value = best.penalised(problem, search.penalty)
        broken = bool(best.excess(problem).any())
        if value - search.bound <= limits.gap * abs(value) and not broken:
            return best, work, ()
        if (patience if broken else limits).out_of_time():
            return best, work, ("wall_clock",)
        if work.mip_columns > columns:
            return best, work, ("mip_columns",)
        size, tries, pool_size = sizes[step]
        over = best.excess(problem) if broken else None
        chosen = _neighbourhood(generator, best, search.mu, size, over)
        key = tuple(int(k) for k in chosen)
        found = None
        if key not in failed or size == count:
            found, spent = _solve(problem, search, best, chosen, pool_size, limits)
            work += spent
        if found is not None:
            best, failures = found, 0
            failed.clear()
            step = max(0, step - 1)
            continue
        failed.add(key)
        failures += 1
        if failures >= tries:
            failures, step = 0, step + 1
            if step == len(sizes):
                return best, work, ("search_exhausted",)
    return best, work, ("rounds",)


def _sizes(count: int) -> list[tuple[int, int, int]]:
    """The sizes of neighbourhoods, from small to large: (number of groups to free, failures before
    the next size, covers per group)."""
    if count <= 4:
        return [(count, 1, 2 * LOCAL_POOL), (count, 1, 4 * LOCAL_POOL)]
    if count > GROUPS:
        return [(size, 8 + count // max(size, 8), LOCAL_POOL) for size in WIDER]
    most = min(count, LARGEST)
    steps = [(size, 8 + count // size, LOCAL_POOL) for size in range(4, most)]
    return [*steps, (most, 1 if most == count else 8, LOCAL_POOL // 2)]


def _neighbourhood(
    generator: np.random.Generator, plan: Incumbent, mu: Floats, size: int, over: Floats | None
) -> Ints:
    """The groups to free: a random group, and others drawn with a probability in proportion to
    their use of the resources that the first group uses.

    If the plan exceeds capacities, the first group is one that uses a resource in `over` (k,).
    Common use is valued at the multipliers. Every group gets a tenth of the mean weight in
    addition, because groups without a common resource in this plan may share one in the next.
    """
    count = len(plan.cost)
    if size >= count:
        return np.arange(count)
    able = np.arange(count) if over is None else np.flatnonzero(plan.use @ over > 0)
    first = int(able[generator.integers(len(able))])
    scarce = plan.use * np.sqrt(np.maximum(mu, 0.0))
    sharing = scarce @ scarce[first]
    sharing[first] = 0.0
    weight = sharing + 0.1 * sharing.mean() + (1.0 if sharing.mean() <= 0 else 0.0)
    weight = np.sqrt(weight)
    weight[first] = 0.0
    others = generator.choice(count, size - 1, replace=False, p=weight / weight.sum())
    return np.sort(np.concatenate([[first], others]))


def _solve(
    problem: Decomposed,
    search: Search,
    plan: Incumbent,
    chosen: Ints,
    pool_size: int,
    limits: SearchLimits,
) -> tuple[Incumbent | None, Work]:
    """A better plan that differs only in the `chosen` groups; None if none was found."""
    others = np.setdiff1d(np.arange(len(plan.cost)), chosen)
    taken = plan.use[others].sum(axis=0)
    broken = plan.excess(problem).any()
    room = np.maximum(0.0, problem.capacity - taken)
    local = Decomposed((), problem.money, room)
    groups = tuple(fitting(problem.groups[k], room) for k in chosen)
    local = replace(local, groups=groups)
    dual = ascend(local, search.mu, rounds=60, tolerance=1e-4, limits=limits)
    if dual is None:
        return None, Work(neighbourhoods=1)
    own = float(plan.cost[chosen].sum())
    old = own + float(plan.excess(problem) @ search.penalty)
    work = Work(pricing_rounds=dual.rounds, neighbourhoods=1)
    if dual.bound >= old - 1e-7 * abs(old):
        return None, work
    scene = Scene(problem.money, local.weight(dual.mu), room, search.marks)
    pools: list[Covers] = []
    for group, k in zip(groups, chosen, strict=True):
        near = pool(group, scene, old - dual.bound, pool_size, LOCAL_TESTS)
        work += Work(search_tests=near.tests)
        if near.within < old - dual.bound:
            least, _ = group.cheapest(scene.weight)
            parts = items_within(group, scene, least, old - dual.bound)
            near = joined(near, parts) if len(parts) <= LOCAL_ITEMS else near
        pools.append(joined(near, plan.cover(int(k))))
    choice = choose(
        pools,
        room,
        nodes=max(20, limits.mip_nodes // 10),
        seconds=limits.search_s(),
        gap=1e-5,
        penalty=search.penalty if broken else None,
        last_fits=not broken,
    )
    if choice is None:
        return None, work + Work(mips=1, mip_columns=sum(len(p) for p in pools))
    work += Work(mips=1, mip_columns=choice.columns, mip_nodes=choice.nodes)
    found = plan.exchange(chosen, pools, choice)
    gain = plan.penalised(problem, search.penalty) - found.penalised(problem, search.penalty)
    return (found if gain > 1e-7 * max(1.0, abs(old)) else None), work
