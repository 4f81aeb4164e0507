"""Raises the bound: solves a MIP over all parts that a plan within some slack of the bound may
use."""

from __future__ import annotations

import numpy as np

from autoscaler.optimizer.decomposition.cover_milp import choose
from autoscaler.optimizer.decomposition.cover_pools import (
    Covers,
    Scene,
    covers_within,
    items_within,
    joined,
)
from autoscaler.optimizer.decomposition.groups import Decomposed
from autoscaler.optimizer.decomposition.incumbent import Incumbent
from autoscaler.optimizer.decomposition.work_limits import SearchLimits, Work

PROOF_COVERS = 2000
"""Largest number of covers of one group in the proving MIP; a group with more covers is represented
by its single pairs."""
PROOF_ITEMS = 200
"""Largest number of single pairs of such a group."""
FEW_ITEMS = 3000
"""If the bound is poor and all groups together have at most this many single pairs, any group may
be represented by its single pairs, because mixes of covers are a weak relaxation for groups that
alone nearly exhaust the capacities."""
POOR = 0.015
"""Relative gap above which the bound is considered poor."""
PROOF_SHARES = (1.0, 0.7, 0.5, 0.35, 0.25, 0.15, 0.08)
"""Shares of the gap that are tried as slack, in this order."""
PROOF_TESTS = 30_000_000
"""Item tests per group for listing all covers within the slack."""
PROOF_NODES = 4
"""The proving MIP gets this multiple of the node limit `mip_nodes`."""
_TIME = 0.5
"""Share of the remaining time for the proving MIP."""


def prove(
    problem: Decomposed,
    scene: Scene,
    ascent: float,
    bound: float,
    plan: Incumbent,
    limits: SearchLimits,
    most: int,
) -> tuple[Incumbent, float, Work]:
    """Return a plan at least as good as `plan`, a raised `bound` and the work done. The MIP
    contains all parts that a plan within some slack of the bound may use.

    If the slack reaches the cost of the present plan, the MIP proves the optimum. With a smaller
    slack, the MIP contains every plan cheaper than `ascent + slack`, so the smaller of `ascent +
    slack` and the MIP's bound is a valid bound.
    """
    full = (plan.money() - ascent) * (1 + 1e-9) + 1e-9
    needed = plan.money() * (1.0 - limits.gap) - ascent
    work = Work()
    for share in PROOF_SHARES:
        slack = share * full
        if ascent + slack <= bound or limits.out_of_time():
            return plan, bound, work
        pools, spent = _everything(problem, scene, slack, most, full > POOR * ascent, limits)
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
        nodes=PROOF_NODES * limits.mip_nodes,
        seconds=_TIME * limits.search_s(),
        gap=min(0.5 * limits.gap, 0.003),
        last_fits=True,
    )
    work += Work(mips=1, mip_columns=sum(len(p) for p in joint))
    if choice is None:
        return plan, bound, work
    work += Work(mip_nodes=choice.nodes)
    found = plan.exchange(np.arange(len(joint)), joint, choice)
    best = found if found.money() < plan.money() else plan
    proven = min(choice.bound, best.money(), ascent + slack)
    return best, max(bound, proven), work


def _everything(
    problem: Decomposed, scene: Scene, slack: float, room: int, poor: bool, limits: SearchLimits
) -> tuple[list[Covers] | None, Work]:
    """For each group, all covers within `slack`, or the single pairs of these covers; None if there
    are too many."""
    pools: list[Covers] = []
    work = Work()
    near = [(g, g.cheapest(scene.weight)[0]) for g in problem.groups]
    sizes = [len(g.near(scene.weight, least, slack)[0]) for g, least in near]
    few = poor and sum(sizes) <= FEW_ITEMS
    for (group, least), size in zip(near, sizes, strict=True):
        if limits.out_of_time():
            return None, work
        tests = limits.tests(PROOF_TESTS)
        covers = covers_within(group, scene, least, slack, min(room, PROOF_COVERS), tests)
        work += Work(search_tests=covers.tests)
        if covers.within < 0:
            if size > (room if few else min(room, PROOF_ITEMS)):
                return None, work
            covers = items_within(group, scene, least, slack)
        room -= len(covers)
        pools.append(covers)
    return pools, work
