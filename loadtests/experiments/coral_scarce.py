"""Coral, sec. 6.4: cost and goodput with scarce nodes.

`coral_setup` has models, nodes, prices and demand. Templates are as in `coral_models`. Alibaba's
trace is not available, so this experiment draws an order of all nodes for each epoch. All node
sizes have the same expected number of GPUs. The shortest prefix of
the order with which our plan serves all demand is available, plus 25% (core) or 75% (extended). If
a method cannot serve the demand, the demand of every model is lowered in steps of 2% until it can,
as in the paper. Goodput is the remaining share of the demand, and cost is that of the plan for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from autoscaler.optimizer.array_types import Ints
from autoscaler.performance.packaged_profile import default_profile
from loadtests.allocation_account import account
from loadtests.experiments.coral_baselines import cauchy, homo
from loadtests.experiments.coral_setup import (
    SETUPS,
    Setup,
    feasible,
    instance,
    libraries,
    ours,
    pairs,
)
from loadtests.results.entry import Figures
from loadtests.template_problem import TemplateProblem

PAPER = {
    "core": {"homo": (1.00, 1.24), "cauchy": (1 / 1.51, 1.0)},
    "extended": {"homo": (1.52, 7.64), "cauchy": (1 / 1.25, 2.39)},
}
"""Coral's cost and goodput relative to the baseline's, in the paper."""
MOST_NODES = 1000
_STEPS = 50
_LIMIT_S = 600.0  # Limit of the baseline's MIP

Method = Callable[[TemplateProblem], Ints]


@dataclass(frozen=True, slots=True)
class Served:
    """USD/h, and the served share of all demand."""

    usd_per_h: float
    goodput: float


@dataclass(frozen=True, slots=True)
class Epoch:
    """Supply of one epoch. nodes: number of available nodes; gpus: number of GPUs of these
    nodes."""

    nodes: int
    gpus: int
    by_method: dict[str, Served]


def epoch(setup: Setup, seed: int) -> Epoch:
    """The epoch that `seed` draws."""
    plenty = instance(setup, libraries(setup, default_profile()), "balanced", MOST_NODES)
    methods: dict[str, Method] = {
        "shoal": lambda problem: ours(problem, 0.01),
        "homo": lambda problem: homo(problem, 1),
        "cauchy": lambda problem: cauchy(problem, pairs(setup), _LIMIT_S, 1),
    }
    tight = scarce(setup, plenty, seed)
    sizes = [node.gpus for node in setup.nodes]
    return Epoch(
        int(tight.available_nodes.sum()),
        int((tight.available_nodes @ sizes).sum()),
        {name: most(tight, method) for name, method in methods.items()},
    )


def scarce(setup: Setup, plenty: TemplateProblem, seed: int) -> TemplateProblem:
    """`plenty` with the available nodes of the epoch that `seed` draws."""
    shape = plenty.available_nodes.shape
    each = [1.0 / node.gpus for node in setup.nodes]
    weights = np.tile(each, shape[0])
    order = np.random.default_rng(seed).choice(weights.size, MOST_NODES, p=weights / weights.sum())

    def first(count: int) -> TemplateProblem:
        counts = np.bincount(order[:count], minlength=weights.size).reshape(shape)
        return replace(plenty, available_nodes=counts)

    short, enough = 0, MOST_NODES
    while enough - short > 1:
        middle = (short + enough) // 2
        if feasible(first(middle)):
            enough = middle
        else:
            short = middle
    return first(math.ceil(setup.slack * enough))


def most(problem: TemplateProblem, method: Method) -> Served:
    """The largest share of the demand that `method` can serve for every model, and the cost of that
    plan."""
    low, high, usd_per_h = 0, _STEPS + 1, 0.0
    asked = _STEPS
    while high - low > 1:
        part = replace(problem, demand_req_per_s=asked / _STEPS * problem.demand_req_per_s)
        rows = method(part)
        if _serves(part, rows):
            low, usd_per_h = asked, account(part, rows)[0]
        else:
            high = asked
        asked = (low + high) // 2
    return Served(usd_per_h, low / _STEPS)


def _serves(problem: TemplateProblem, rows: Ints) -> bool:
    _, served, excess = account(problem, rows)
    return not excess and bool((served >= problem.demand_req_per_s * (1.0 - 1e-6)).all())


def measure(seed: int, setup: str) -> Figures:
    """Cost and served share of each method in the epoch of `seed`."""
    found: Figures = {
        name: {"usd_per_h": one.usd_per_h, "goodput": one.goodput}
        for name, one in epoch(SETUPS[setup], seed).by_method.items()
    }
    return found | {
        "paper": {
            name: {"cost": cost, "goodput": goodput}
            for name, (cost, goodput) in PAPER[setup].items()
        }
    }
