"""Coral, sec. 6.4: cost and goodput with scarce nodes.

    python -m loadtests.experiments.coral_scarce [--setup core|extended] [--epochs N] [--seed S]
           [--alike gpus|nodes]

`coral_setup` has models, nodes, prices and demand. Templates are as in `coral_models`. Alibaba's
trace is not available, so this experiment draws an order of all nodes for each epoch. All node
sizes have the same expected number of GPUs (with --alike nodes: of nodes). The shortest prefix of
the order with which our plan serves all demand is available, plus 25% (core) or 75% (extended). If
a method cannot serve the demand, the demand of every model is lowered in steps of 2% until it can,
as in the paper. Goodput is the remaining share of the demand, and cost is that of the plan for it.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autoscaler.domain.validation import InvalidValue, whole
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
from loadtests.experiments.page import rows_of
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


def epochs(setup: Setup, seeds: Sequence[int], alike: str) -> list[Epoch]:
    """One epoch for each seed. Each is printed as soon as it is ready."""
    plenty = instance(setup, libraries(setup, default_profile()), "balanced", MOST_NODES)
    methods: dict[str, Method] = {
        "shoal": lambda problem: ours(problem, 0.01),
        "homo": lambda problem: homo(problem, 1),
        "cauchy": lambda problem: cauchy(problem, pairs(setup), _LIMIT_S, 1),
    }
    found = []
    for seed in seeds:
        tight = scarce(setup, plenty, seed, alike)
        sizes = [node.gpus for node in setup.nodes]
        made = Epoch(
            int(tight.available_nodes.sum()),
            int((tight.available_nodes @ sizes).sum()),
            {name: most(tight, method) for name, method in methods.items()},
        )
        found.append(made)
        said = ", ".join(f"{name} {one.usd_per_h:.2f} USD/h for {one.goodput:.0%}"
                         for name, one in made.by_method.items())  # fmt: skip
        print(f"{setup.name}, epoch {seed}: {made.nodes} nodes, {made.gpus} GPUs: {said}",
              flush=True)  # fmt: skip
    return found


def scarce(
    setup: Setup, plenty: TemplateProblem, seed: int, alike: str = "gpus"
) -> TemplateProblem:
    """`plenty` with the available nodes of the epoch that `seed` draws."""
    shape = plenty.available_nodes.shape
    each = [1.0 / node.gpus if alike == "gpus" else 1.0 for node in setup.nodes]
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


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 2 bad input."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.experiments.coral_scarce")
    parser.add_argument("--setup", choices=list(SETUPS), default="core")
    parser.add_argument("--epochs", type=int, default=5, help="draws of nodes (the paper has 5)")
    parser.add_argument("--seed", type=int, default=0, help="of the first draw")
    of_each = "as many of each size of node"
    parser.add_argument("--alike", choices=("gpus", "nodes"), default="gpus", help=of_each)
    args = parser.parse_args(argv)
    setup = SETUPS[args.setup]
    try:
        whole("--epochs", args.epochs, 1, 1000)
        whole("--seed", args.seed, 0, 2**31)
        found = epochs(setup, range(args.seed, args.seed + args.epochs), args.alike)
        print("\n".join(["", *_table(setup, found)]))
    except InvalidValue as error:
        print(f"coral_scarce: {error}", file=sys.stderr)
        return 2
    return 0


def _mean(found: Sequence[Epoch], method: str) -> Served:
    each = [epoch.by_method[method] for epoch in found]
    return Served(
        sum(one.usd_per_h for one in each) / len(each), sum(one.goodput for one in each) / len(each)
    )


def _table(setup: Setup, found: Sequence[Epoch]) -> list[str]:
    mine = _mean(found, "shoal")
    heads = ["method", "USD/h", "goodput", "ours by it: cost", "paper", "goodput", "paper"]
    cells = [["ours", f"{mine.usd_per_h:.2f}", f"{mine.goodput:.0%}", "", "", "", ""]]
    for method, (cost, goodput) in PAPER[setup.name].items():
        one = _mean(found, method)
        ratios = ["-", "-"]
        if one.goodput:
            ratios = [f"x{mine.usd_per_h / one.usd_per_h:.2f}",
                      f"x{mine.goodput / one.goodput:.2f}"]  # fmt: skip
        cells.append([method.capitalize(), f"{one.usd_per_h:.2f}", f"{one.goodput:.0%}",
                      ratios[0], f"x{cost:.2f}", ratios[1], f"x{goodput:.2f}"])  # fmt: skip
    return rows_of(heads, cells)


if __name__ == "__main__":
    sys.exit(main())
