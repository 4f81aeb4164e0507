"""The search by decomposition: a bound by dual ascent, a plan from pools, neighbourhoods, and a
proof."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from autoscaler.optimizer.array_types import Floats
from autoscaler.optimizer.decomposition.cover_pools import (
    Covers,
    Scene,
    cheapest,
    items_within,
    joined,
    marks_for,
    pool,
)
from autoscaler.optimizer.decomposition.dual_ascent import DualResult, ascend, proven_infeasible
from autoscaler.optimizer.decomposition.first_plan import first_plan, penalty_of
from autoscaler.optimizer.decomposition.groups import Decomposed, near_pairs_only
from autoscaler.optimizer.decomposition.incumbent import Incumbent
from autoscaler.optimizer.decomposition.neighbourhood import Search, improve
from autoscaler.optimizer.decomposition.proof import prove
from autoscaler.optimizer.decomposition.work_limits import SearchLimits, Work

QUICK_ROUNDS = 5
"""Pricing rounds if any plan suffices and the caller gives a plan to start from."""
ASCENT_ROUNDS = 400
"""Largest number of pricing rounds of the dual ascent over all groups."""
POOL_COLUMNS = 2400
"""Number of covers in the first MIP, over all groups."""
PROOF_COLUMNS = 4000
"""Largest number of columns of the proving MIP: all covers of all groups within a slack."""
FINE, COARSE = 0.005, 0.1
"""A search that ends with a gap between these two continues to the gap FINE if that takes little
work, because one more step often improves a plan that is far from the bound."""
POLISH_COLUMNS = 4000
"""Largest number of MIP columns for this continuation."""
POLISH_TIME = 0.5
"""Share of the remaining time for the proof in this continuation."""
RAISES = 4
"""Number of times that the penalty for exceeded capacities may be multiplied by ten while no plan
fits."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A plan (None: no plan that fits was found), the proven bound, and the multipliers (k,) of the
    bound.

    An infinite bound proves that no plan fits.
    """

    plan: Incumbent | None
    bound: float
    mu: Floats
    limits: tuple[str, ...]
    work: Work


def solve_decomposed(
    problem: Decomposed,
    limits: SearchLimits,
    mu: Floats | None = None,
    given: Incumbent | None = None,
) -> Outcome:
    """Solve `problem` to `limits.gap`, or as far as the limits allow.

    mu (k,): multipliers to start from. given: a plan that serves the demand; the search starts from
    it, and returns it if there is no time to search. With a gap of 1 any plan that fits suffices,
    so little work is spent on the bound.
    """
    resources = len(problem.capacity)
    start = np.zeros(resources) if mu is None else np.maximum(0.0, mu)
    if not problem.groups:
        nothing = Incumbent(np.zeros(0), np.zeros((0, resources)), ())
        return Outcome(nothing, 0.0, start, (), Work())
    limits = limits.for_groups(len(problem.groups))
    rounds = QUICK_ROUNDS if limits.gap >= 1.0 and given is not None else ASCENT_ROUNDS
    # The ascent gets at most half of the time, because a plan is needed too. A shorter ascent still
    # gives a valid bound.
    dual = ascend(problem, start, rounds, limits=limits.within(0.5))
    if dual is None:
        return Outcome(None, float("inf"), start, (), Work(pricing_rounds=1))
    search = _Run(problem, limits, dual)
    search.step("relaxation", dual.columns)
    full_ascent = rounds == ASCENT_ROUNDS
    if full_ascent and dual.artificial > 1e-7 and proven_infeasible(problem, limits.within(0.5)):
        return Outcome(None, float("inf"), dual.mu, (), search.work)
    return search.run(given, wide_pools=not dual.fits and (given is None or full_ascent))


class _Run:
    """One search: the best `plan` and `bound` so far, and the `work` done."""

    def __init__(self, problem: Decomposed, limits: SearchLimits, dual: DualResult) -> None:
        self.problem, self.limits, self.dual = problem, limits, dual
        self.scene = Scene(
            problem.money,
            problem.weight(dual.mu),
            problem.capacity,
            marks_for(len(problem.capacity), limits.seed),
        )
        self.bound, self.work = dual.bound, Work(pricing_rounds=dual.rounds)
        self.plan: Incumbent | None = None
        self.columns = sum(int(group.allowed.sum()) for group in problem.groups)

    def step(self, name: str, built: int) -> None:
        """Report a step that has just ended."""
        cost = np.inf if self.plan is None else self.plan.money()
        self.limits.step(name, self.columns, built, self.bound, cost)

    def run(self, given: Incumbent | None, wide_pools: bool) -> Outcome:
        """Search from the dual ascent to a plan within the gap, or as far as the limits allow."""
        pools = self._pools(wide_pools)
        if given is not None:
            pools = [joined(p, given.cover(k)) for k, p in enumerate(pools)]
        if any(len(p) == 0 for p in pools):
            return self._outcome(("no_cover_found",))
        penalty = penalty_of(pools, len(self.problem.capacity))
        plan = given
        if plan is None:
            plan, spent = first_plan(self.problem, self.scene, pools, penalty, self.limits)
            self.work += spent
        if plan is None:
            return self._outcome(("first_plan",))
        self.plan = plan
        self.step("first plan", sum(len(p) for p in pools))
        hit = self._improve(plan, penalty)
        return self._outcome(hit)

    def _outcome(self, hit: tuple[str, ...]) -> Outcome:
        plan = self.plan
        if plan is None:
            return Outcome(None, self.bound, self.dual.mu, hit, self.work)
        if plan.excess(self.problem).any():
            hit = (*hit, "no_plan_fits")
            return Outcome(None, self.bound, self.dual.mu, hit, self.work)
        return Outcome(plan, min(self.bound, plan.money()), self.dual.mu, hit, self.work)

    def _pools(self, wide: bool) -> list[Covers]:
        """For each group, the cheapest real covers and, if `wide`, covers that are nearly as cheap.
        Also raises the Lagrangian bound, because the exact prices of the cheapest covers are now
        known.
        """
        problem, scene, limits = self.problem, self.scene, self.limits
        bound, pools = -float(self.dual.mu @ problem.capacity), []
        for group in problem.groups:
            least, _ = group.cheapest(scene.weight)
            floor = float(least[-1])
            if limits.out_of_time():
                bound += floor
                pools.append(items_within(group, scene, least, 0.0, 1))
                continue
            most = limits.tests(limits.search_tests)
            price, covers = cheapest(group, scene, 4.0 * floor + 1.0, most)
            bound += price
            pools.append(covers)
        self.bound = max(self.bound, bound)
        widest = max(
            0.02 * abs(self.bound), min(self.dual.mix_value - self.dual.bound, abs(self.bound))
        )
        if wide:
            most = int(np.clip(POOL_COLUMNS // len(problem.groups), 24, 250))
            pools = [
                p
                if limits.out_of_time()
                else joined(pool(g, scene, widest, most, limits.tests(limits.search_tests)), p)
                for g, p in zip(problem.groups, pools, strict=True)
            ]
        self.work += Work(search_tests=sum(p.tests for p in pools))
        return pools

    def _improve(self, plan: Incumbent, penalty: Floats) -> tuple[str, ...]:
        """Prove and search neighbourhoods in turn; returns the limits that ended the search."""
        problem, asked = self.problem, self.limits.gap
        limits = replace(self.limits, gap=min(asked, FINE) if asked < COARSE else asked)
        hit: tuple[str, ...] = ()
        proven_for, raises, before_polish = np.inf, 0, -1
        while True:
            value = plan.penalised(problem, penalty)
            fits = not plan.excess(problem).any()
            done = value - self.bound <= asked * abs(value) and fits
            if done and before_polish < 0:
                before_polish = self.work.mip_columns
            polish = POLISH_COLUMNS + before_polish - self.work.mip_columns
            fine = value - self.bound <= limits.gap * abs(value)
            if done and (fine or polish <= 0 or hit or limits.out_of_time()):
                hit = ()
                break
            if limits.out_of_time():
                hit = hit or ("wall_clock",)
                break
            room = limits.mip_columns - self.work.mip_columns
            if value < proven_for and room > 0 and fits:
                proven_for, most = value, min(room, PROOF_COLUMNS)
                given = limits.within(POLISH_TIME) if done else limits
                given = replace(given, mip_nodes=limits.mip_nodes // 4) if done else given
                plan, self.bound, spent = prove(
                    problem, self.scene, self.dual.bound, self.bound, plan, given, most
                )
                self.work, self.plan = self.work + spent, plan
                self.step("proof", spent.mip_columns)
                continue
            if hit:
                break
            close = near_pairs_only(problem, self.scene.weight, value - self.dual.bound)
            columns = limits.mip_columns - self.work.mip_columns
            search = Search(self.dual.mu, self.bound, self.scene.marks, penalty)
            columns = min(columns, polish) if done else columns
            plan, spent, hit = improve(close, search, plan, limits, columns)
            self.work, self.plan = self.work + spent, plan
            self.step("neighbourhoods", spent.mip_columns)
            if plan.excess(problem).any() and hit == ("search_exhausted",) and raises < RAISES:
                # No plan fits, so covers that fit cost more than all known covers: the penalty is
                # too low.
                penalty, raises, hit = 10.0 * penalty, raises + 1, ()
        if self.dual.cut and not done:
            hit = tuple(dict.fromkeys((*hit, "wall_clock")))
        return hit
