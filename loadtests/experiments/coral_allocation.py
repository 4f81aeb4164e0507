"""Coral's cost experiments (sections 6.3 and 6.4) on allocation instances.

usage: python -m loadtests.experiments.coral_allocation INSTANCE.npz... [--baseline-nodes N]
       [--out PAGE.md]

For each instance: cost and served demand of our plan, of Homo and of Cauchy, and the ratios beside
the paper's. The paper's instances are not public; generated ones of the same scale stand in, so a
ratio may differ from the paper's for the instance's sake. Goodput is the sum over models of what
both phases serve of their demand.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from autoscaler.domain.checks import InvalidValue
from autoscaler.optimizer.arrays import Ints
from loadtests.allocation_bench import compile_kernels
from loadtests.allocation_files import read_instance
from loadtests.coral.instance import TemplateInstance
from loadtests.coral.limits import SearchOptions
from loadtests.coral.placements import account, solve_instance
from loadtests.experiments.coral_baselines import cauchy, homo

PAPER = {
    "core_ample": ("cost x1.62", "cost x1.60"),
    "core_scarce": ("cost x1.00, goodput x0.81", "cost x1.51, goodput x1.00"),
    "ext_ample": ("cost x3.14", "cost x2.66"),
    "ext_scarce": ("cost x0.66, goodput x0.13", "cost x1.25, goodput x0.42"),
}
"""Baseline by Coral, from its sections 6.3 and 6.4: Homo, Cauchy."""


@dataclass(frozen=True, slots=True)
class Plan:
    """usd_per_h: of its nodes. served: share of the demand of all models, by requests."""

    name: str
    usd_per_h: float
    served: float
    seconds: float


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 2 bad input."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.experiments.coral_allocation")
    parser.add_argument("instances", nargs="+", type=Path, metavar="INSTANCE.npz")
    parser.add_argument("--out", type=Path, help="write the table there as Markdown")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds per solve")
    option = "--baseline-nodes"
    parser.add_argument(option, type=int, default=0, help="most nodes in a baseline's replica")
    args = parser.parse_args(argv)
    compile_kernels()
    lines = [
        "| instance | shoal USD/h, served | Homo | paper | Cauchy | paper |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    print("\n".join(lines), flush=True)
    try:
        for path in args.instances:
            lines.append(_line(path.stem, plans(path, args.time_limit, args.baseline_nodes)))
            print(lines[-1], flush=True)
    except (InvalidValue, OSError) as error:
        print(f"coral_allocation: {error}", file=sys.stderr)
        return 2
    if args.out:
        args.out.write_text("\n".join(lines) + "\n")
    return 0


def plans(path: Path, time_limit_s: float, most_nodes: int = 0) -> tuple[Plan, Plan, Plan]:
    """Ours, Homo's and Cauchy's plan of one instance."""
    instance = read_instance(path)
    pairs = phase_pairs(path)
    begin = time.monotonic()
    options = SearchOptions(
        gap=0.005, time_limit_s=time_limit_s, elapsed_s=lambda: time.monotonic() - begin
    )
    ours = solve_instance(instance, options).rows
    spent = [time.monotonic() - begin]
    begin = time.monotonic()
    greedy = homo(instance, most_nodes)
    spent.append(time.monotonic() - begin)
    begin = time.monotonic()
    combined = cauchy(instance, pairs, time_limit_s, most_nodes)
    spent.append(time.monotonic() - begin)
    return (
        judged("shoal", instance, pairs, ours, spent[0]),
        judged("homo", instance, pairs, greedy, spent[1]),
        judged("cauchy", instance, pairs, combined, spent[2]),
    )


def phase_pairs(path: Path) -> list[tuple[int, int]]:
    """(prefill group, decode group) of each model."""
    with np.load(path, allow_pickle=False) as archive:
        if "group_model" not in archive.files or "group_phase" not in archive.files:
            raise InvalidValue(f"{path}: group_model, group_phase", "missing", "names of groups")
        models = [str(name) for name in archive["group_model"]]
        phases = [str(name) for name in archive["group_phase"]]
    found: dict[str, dict[str, int]] = {}
    for index, (model, phase) in enumerate(zip(models, phases, strict=True)):
        found.setdefault(model, {})[phase] = index
    return [(groups["prefill"], groups["decode"]) for groups in found.values()]


def judged(
    name: str,
    instance: TemplateInstance,
    pairs: list[tuple[int, int]],
    rows: Ints,
    seconds: float,
) -> Plan:
    """What `rows` cost, start penalties left out, and serve; InvalidValue where they use more nodes
    than there are."""
    cost, served, excess = account(instance, rows)
    if excess:
        raise InvalidValue(f"{name}: nodes", "too many", "what is available")
    demand = instance.demand_req_per_s
    got = sum(min(served[a], served[b], demand[a]) for a, b in pairs)
    return Plan(
        name,
        cost / (1.0 + instance.start_penalty),
        float(got / sum(demand[a] for a, _ in pairs)),
        seconds,
    )


def _line(name: str, found: tuple[Plan, Plan, Plan]) -> str:
    ours, greedy, combined = found
    paper = PAPER.get("_".join(name.split("_")[:2]).rstrip("0123456789."), ("-", "-"))
    cells = [f"{ours.usd_per_h:.2f}, {100 * ours.served:.1f}% ({ours.seconds:.1f} s)"]
    for plan, theirs in zip((greedy, combined), paper, strict=True):
        ratio = f"cost x{plan.usd_per_h / ours.usd_per_h:.2f}" if ours.usd_per_h else "-"
        cells.append(
            f"{plan.usd_per_h:.2f}, {100 * plan.served:.1f}%: {ratio}, "
            f"goodput x{plan.served / ours.served:.2f}"
        )
        cells.append(theirs)
    return f"| {name} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
