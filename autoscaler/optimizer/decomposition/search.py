"""The search: bound by dual ascent, choose from pools, search neighbourhoods, prove.

Owns the order of these steps and when to stop. Knows nothing of templates and regions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from autoscaler.optimizer.arrays import Floats, Ints
from autoscaler.optimizer.decomposition.cover_milp import choose
from autoscaler.optimizer.decomposition.cover_pools import (
    Covers,
    Scene,
    cheapest,
    covers_within,
    items_within,
    joined,
    marks_for,
    near,
    pool,
)
from autoscaler.optimizer.decomposition.dual_ascent import ascend, subproblem
from autoscaler.optimizer.decomposition.first_plan import first_plan, penalty_of
from autoscaler.optimizer.decomposition.groups import Decomposed, Group, restrict
from autoscaler.optimizer.decomposition.incumbent import Incumbent
from autoscaler.optimizer.decomposition.neighbourhood import Search, improve
from autoscaler.optimizer.decomposition.work_limits import SearchLimits, Work

QUICK_ROUNDS = 5
"""Pricing rounds where only a plan is wanted and one to start from is there."""
ASCENT_ROUNDS = 400
"""Most pricing rounds of the global dual ascent."""
POOL_COLUMNS = 2400
"""Covers in the first MIP, over all groups."""
PROOF_COLUMNS = 4000
"""Most columns of the MIP that proves: all covers within a slack, of all groups."""
PROOF_COVERS = 2000
"""Most covers of one group in it; a group with more enters by its single pairs."""
PROOF_ITEMS = 200
"""Most single pairs of such a group."""
FEW_ITEMS = 3000
"""Up to this many single pairs in all groups, any group may enter by them where the bound is poor:
groups that alone strain the capacities make mixes of covers a weak relaxation."""
RAISES = 4
"""How often the penalty of exceeding a capacity is raised tenfold when no plan that fits is met."""
POOR = 0.015
"""Relative gap above which the bound is called poor."""
PROOF_SHARES = (1.0, 0.7, 0.5, 0.35, 0.25, 0.15, 0.08)
"""Parts of the gap that are tried, the whole first."""
PROOF_TESTS = 30_000_000
"""Item tests per group when all covers within the gap are listed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A plan (None: nothing that fits was found), the proven bound, its multipliers (k,).

    `nearest`: without a plan, one that serves the demand but exceeds capacities; where less demand
    starts.
    """

    plan: Incumbent | None
    bound: float
    mu: Floats
    limits: tuple[str, ...]
    work: Work
    nearest: Incumbent | None = None


def solve_decomposed(
    problem: Decomposed,
    options: SearchLimits,
    mu: Floats | None,
    given: Incumbent | None = None,
) -> Outcome:
    """Solve to `options.gap`, or as far as the limits allow.

    `mu` (k,): where ascent starts. `given`: a plan that serves, to start from; it is returned even
    when there is no time for anything else. With a gap of 1 any plan that fits will do, and little
    is spent on the bound.
    """
    resources = len(problem.capacity)
    start = np.zeros(resources) if mu is None else np.maximum(0.0, mu)
    options = options.for_groups(len(problem.groups))
    # Half of the time at most: a plan must come out too, and any multipliers prove something.
    rounds = QUICK_ROUNDS if options.gap >= 1.0 and given is not None else ASCENT_ROUNDS
    dual = ascend(problem, start, rounds, options=options.within(0.5))
    if dual is None:
        return Outcome(None, float("inf"), start, (), Work(pricing_rounds=1))
    work = Work(pricing_rounds=dual.rounds)
    if (
        rounds == ASCENT_ROUNDS
        and dual.artificial > 1e-7
        and proven_infeasible(problem, options.within(0.5))
    ):
        return Outcome(None, float("inf"), dual.mu, (), work)
    marks = marks_for(resources, options.seed)
    scene = Scene(problem.money, problem.weight(dual.mu), problem.capacity, marks)
    bound, pools = _sharpen(problem, scene, dual.mu, options)
    work += Work(search_tests=sum(p.tests for p in pools))
    bound = max(bound, dual.bound)
    widest = max(0.02 * abs(bound), min(dual.mix_value - dual.bound, abs(bound)))
    if not dual.fits and (given is None or rounds == ASCENT_ROUNDS):
        most = int(np.clip(POOL_COLUMNS // len(problem.groups), 24, 250))
        pools = [
            p
            if options.out_of_time()
            else joined(pool(g, scene, widest, most, options.search_tests), p)
            for g, p in zip(problem.groups, pools, strict=True)
        ]
        work += Work(search_tests=sum(p.tests for p in pools))
    if given is not None:
        pools = [joined(p, given.cover(k)) for k, p in enumerate(pools)]
    if any(len(p) == 0 for p in pools):
        return Outcome(None, bound, dual.mu, ("no_cover_found",), work)
    penalty = penalty_of(pools, resources)
    plan = given
    if plan is None:
        plan, spent = first_plan(problem, scene, pools, penalty, options)
        work += spent
    if plan is None:
        return Outcome(None, bound, dual.mu, ("first_plan",), work)
    limits: tuple[str, ...] = ()
    value = plan.penalised(problem, penalty)
    proven_for, raises = np.inf, 0
    while value - bound > options.gap * abs(value) or plan.excess(problem).any():
        room = options.mip_columns - work.mip_columns
        fits = not plan.excess(problem).any()
        if value < proven_for and room > 0 and fits and not options.out_of_time():
            proven_for = value
            most = min(room, PROOF_COLUMNS)
            plan, bound, spent = _prove(problem, scene, dual.bound, bound, plan, options, most)
            work += spent
            value = plan.penalised(problem, penalty)
            if value - bound <= options.gap * abs(value):
                break
        if limits:
            break
        if options.out_of_time():
            limits = ("wall_clock",)
            break
        near = _survivors(problem, scene, value - dual.bound)
        columns = options.mip_columns - work.mip_columns
        search = Search(dual.mu, bound, marks, penalty)
        plan, spent, limits = improve(near, search, plan, options, columns)
        limits = limits or ("gap_reached",)
        work += spent
        if plan.excess(problem).any() and limits == ("search_exhausted",) and raises < RAISES:
            # Exceeding is still cheaper than the covers that fit: they were dearer than all known.
            penalty, raises, limits = 10.0 * penalty, raises + 1, ()
        value = plan.penalised(problem, penalty)
    limits = tuple(x for x in limits if x != "gap_reached")
    if dual.cut and value - bound > options.gap * abs(value):
        limits = tuple(dict.fromkeys((*limits, "wall_clock")))
    if plan.excess(problem).any():
        return Outcome(None, bound, dual.mu, (*limits, "no_plan_fits"), work, plan)
    return Outcome(plan, min(bound, value), dual.mu, limits, work)


def proven_infeasible(problem: Decomposed, options: SearchLimits | None = None) -> bool:
    """No mix of covers fits: a positive bound on the artificial cover that is needed."""
    dual = ascend(
        problem,
        np.zeros(len(problem.capacity)),
        ASCENT_ROUNDS,
        money=False,
        stop_above=1e-7,
        options=options,
    )
    return dual is None or dual.bound > 1e-7


def _sharpen(
    problem: Decomposed, scene: Scene, mu: Floats, options: SearchLimits
) -> tuple[float, list[Covers]]:
    """The Lagrangian bound with the exact cheapest real cover of every group, and those covers."""
    bound = -float(mu @ problem.capacity)
    pools: list[Covers] = []
    for group in problem.groups:
        least, _ = subproblem(group, scene.weight)
        floor = float(least[-1])
        if options.out_of_time():
            bound += floor
            pools.append(items_within(group, scene, least, 0.0, 1))
            continue
        price, covers = cheapest(group, scene, 4.0 * floor + 1.0, options.search_tests)
        bound += price
        pools.append(covers)
    return bound, pools


def _near_codes(group: Group, scene: Scene, least: Floats, slack: float) -> Ints:
    """Codes of the pairs that a plan within `slack` of the bound may hold."""
    codes, _ = near(group, scene.weight, least, slack)
    return np.asarray(codes)


def _near(group: Group, scene: Scene, slack: float) -> Group:
    """The group with only those pairs."""
    least, _ = subproblem(group, scene.weight)
    allowed = np.zeros_like(group.allowed)
    allowed.ravel()[_near_codes(group, scene, least, slack)] = True
    return restrict(group, allowed)


def _survivors(problem: Decomposed, scene: Scene, slack: float) -> Decomposed:
    """Reduced-cost fixing: what a better plan may hold. Widened a little for rounding."""
    slack = slack * (1 + 1e-9) + 1e-9
    return replace(problem, groups=tuple(_near(g, scene, slack) for g in problem.groups))


def _prove(
    problem: Decomposed,
    scene: Scene,
    ascent: float,
    bound: float,
    plan: Incumbent,
    options: SearchLimits,
    most: int,
) -> tuple[Incumbent, float, Work]:
    """Raise the bound by a MIP over everything that a plan within some slack of it may hold.

    If the slack reaches the plan at hand, the MIP decides. If only part of it can be listed, a plan
    below `ascent + slack` would be in the MIP, so the lesser of that and the MIP's bound holds.
    """
    full = (plan.money(problem) - ascent) * (1 + 1e-9) + 1e-9
    needed = plan.money(problem) * (1.0 - options.gap) - ascent
    work = Work()
    for share in PROOF_SHARES:
        slack = share * full
        if ascent + slack <= bound or options.out_of_time():
            return plan, bound, work
        pools, spent = _everything(problem, scene, slack, most, full > POOR * ascent)
        work += spent
        if pools is not None:
            break
    else:
        return plan, bound, work
    if pools is None or (share < 1.0 and slack < needed and ascent + slack < bound * (1 + 1e-4)):
        return plan, bound, work
    joint = [joined(p, plan.cover(k)) for k, p in enumerate(pools)]
    choice = choose(
        joint,
        problem.capacity,
        nodes=options.mip_nodes * 10,
        seconds=min(20.0, 0.8 * options.left_s()),
        gap=1e-9 if share >= 1.0 else options.gap / 10,
        last_fits=True,
    )
    work += Work(mips=1, mip_columns=sum(len(p) for p in joint))
    if choice is None:
        return plan, bound, work
    work += Work(mip_nodes=choice.nodes)
    found = plan.exchange(np.arange(len(joint)), joint, choice)
    best = found if found.money(problem) < plan.money(problem) else plan
    proven = min(choice.bound, best.money(problem), ascent + slack)
    return best, max(bound, proven), work


def _everything(
    problem: Decomposed, scene: Scene, slack: float, room: int, poor: bool
) -> tuple[list[Covers] | None, Work]:
    """Per group all covers within `slack`, or the pairs they are made of; None if too many."""
    pools: list[Covers] = []
    work = Work()
    near = [(g, subproblem(g, scene.weight)[0]) for g in problem.groups]
    sizes = [len(_near_codes(g, scene, least, slack)) for g, least in near]
    few = poor and sum(sizes) <= FEW_ITEMS
    for (group, least), size in zip(near, sizes, strict=True):
        covers = covers_within(group, scene, least, slack, min(room, PROOF_COVERS), PROOF_TESTS)
        work += Work(search_tests=covers.tests)
        if covers.within < 0:
            if size > (room if few else min(room, PROOF_ITEMS)):
                return None, work
            covers = items_within(group, scene, least, slack)
        room -= len(covers)
        pools.append(covers)
    return pools, work
