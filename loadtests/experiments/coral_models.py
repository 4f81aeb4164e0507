"""Coral, sec. 6.3 and 6.5: cost of our plans, of Cauchy's and of homogeneous ones.

    python -m loadtests.experiments.coral_models [--setup core|extended] [--mix M...]
           [--library coral|vllm] [--vary]

Models, SLOs, nodes and prices: `coral_setup`. Each plan is for the mean rate of one epoch, without
a limit on nodes and without start penalties (under 1% in the paper).

coral     our plan over Coral's full library (any nodes in an instance, several nodes in a stage),
          the baselines over that library's single nodes, which they choose in the paper
vllm      our plan over deployments that vLLM can run (pipelines, matched pairs, one GPU type in a
          tensor-parallel group), the baselines over such deployments on single nodes; latencies
          include waiting

--vary changes one assumption at a time, to show how the ratios depend on it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from autoscaler.domain.cluster import Cluster, Market, Policy, Pool, Service
from autoscaler.domain.combo import Combo
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Demand, Lengths, Slo
from autoscaler.performance import catalog
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.performance.profile import Profile
from autoscaler.planning.planning_problem import PlanningProblem, PlanOptions, make_problem
from autoscaler.simulation.strategies.registry import strategy
from loadtests.allocation_account import account
from loadtests.experiments.coral_baselines import cauchy, homo
from loadtests.experiments.coral_setup import (
    BURST,
    CODE,
    CONVERSATION,
    REGIONS,
    SETUPS,
    Setup,
    instance,
    libraries,
    ours,
    pairs,
)
from loadtests.experiments.page import rows_of

MIXES = ("balanced", "large-heavy", "small-heavy")
PAPER = {
    ("core", "balanced"): (1.62, 1.60),
    ("core", "large-heavy"): (1.82, 1.78),
    ("core", "small-heavy"): (1.1, 1.1),
    ("extended", "balanced"): (3.14, 2.66),
    ("extended", "large-heavy"): (2.79, 3.47),
    ("extended", "small-heavy"): (2.34, 1.64),
}
"""Cost of Homo and of Cauchy relative to Coral in the paper.

For the core setup's small-heavy mix the paper says "about 10%".
"""
PAPER_LARGEST = {"core": (2.02, 1.88), "extended": (4.93, 4.08)}
"""The same ratios for the largest model alone, with the balanced mix."""
PLENTY = 400
_LIMIT_S = 600.0
_PCIE_GB_S = 25.0
_LATER = {CONVERSATION: (1631, 106), CODE: (2511, 23), BURST: BURST}
_METHODS = ("shoal", "homo", "cauchy")


@dataclass(frozen=True, slots=True)
class Row:
    """Cost of our plan in USD/h, and costs of Homo and Cauchy relative to it.

    largest: both relative costs for the last model alone.
    """

    name: str
    usd_per_h: float
    homo: float
    cauchy: float
    largest: tuple[float, float] | None = None


def on_library(setup: Setup, profile: Profile, mixes: Sequence[str], nodes: int = 1) -> list[Row]:
    """Costs over Coral's full library. nodes: largest number of nodes in a baseline's replica; 0 =
    any.
    """
    made, rows = libraries(setup, profile), []
    for mix in mixes:
        problem = instance(setup, made, mix, PLENTY)
        plans = (
            ours(problem, 0.002),
            homo(problem, nodes),
            cauchy(problem, pairs(setup), _LIMIT_S, nodes),
        )
        for method, plan in zip(_METHODS, plans, strict=True):
            if (account(problem, plan)[1] < problem.demand_req_per_s * (1.0 - 1e-6)).any():
                raise InvalidValue(f"{setup.name}, {mix}: {method}", "short", "all demand served")
        costs = [account(problem, plan)[0] for plan in plans]
        last = [account(problem, p[p[:, 0] >= 2 * len(setup.models) - 2])[0] for p in plans]
        rows.append(
            Row(mix, costs[0], costs[1] / costs[0], costs[2] / costs[0],
                (last[1] / last[0], last[2] / last[0]))
        )  # fmt: skip
        print(_progress_line(setup, rows[-1]), flush=True)
    return rows


def on_vllm(setup: Setup, profile: Profile, mixes: Sequence[str]) -> list[Row]:
    """Costs over deployments that vLLM can run."""
    cluster, rows = _cluster(setup), []
    gpus = {pool.id: pool.gpu.name for pool in cluster.pools}
    for mix in mixes:
        rates = setup.req_per_s_of(mix)
        demands = {s.model: Demand(s.model, rates[s.model], s.lengths) for s in cluster.services}
        options = PlanOptions(gap=2e-3, time_limit_s=_LIMIT_S)
        problem = make_problem(cluster, demands, profile, options=options)
        costs = []
        for method in _METHODS:
            plan = strategy(method).solve(_method_combos(problem, method, gpus))
            if plan.shortfall_req_per_s:
                raise InvalidValue(f"{setup.name}, {mix}: {method}", "short", "all demand served")
            costs.append(plan.cost_usd_per_h)
        rows.append(Row(mix, costs[0], costs[1] / costs[0], costs[2] / costs[0]))
        print(_progress_line(setup, rows[-1]), flush=True)
    return rows


def _method_combos(
    problem: PlanningProblem, method: str, gpus: Mapping[str, str]
) -> PlanningProblem:
    """Keep only the combos that a method may use: single nodes for the baselines, one GPU type for
    Homo."""

    def allowed(combo: Combo) -> bool:
        single = all(member.stage == 0 for member in combo.members)
        mixed = len({gpus[member.pool] for member in combo.members}) > 1
        return method == "shoal" or (single and (method == "cauchy" or not mixed))

    kept = {m: tuple(filter(allowed, combos)) for m, combos in problem.candidates.items()}
    return replace(problem, candidates=kept)


def _cluster(setup: Setup) -> Cluster:
    pools = tuple(
        Pool(
            region, f"{node.gpu.name.lower()}x{node.gpus}", node.gpu, node.gpus, PLENTY,
            Market.ON_DEMAND, node.usd_per_h * REGIONS[region],
        )
        for region in setup.regions
        for node in setup.nodes
    )  # fmt: skip
    services = tuple(
        Service(
            model=m.name,
            architecture=catalog.model(m.source),
            slo=Slo(m.prefill_ms, m.decode_ms),
            max_len_tokens=8192,
            lengths=Lengths.expected(*m.lengths),
            utilization=1.0,
            pipelines="any",
        )
        for m in setup.models
    )
    return Cluster(pools, services, Policy(k_start=0.0, k_load=0.0, k_switch=0.0))


def varied(setup: Setup, profile: Profile) -> list[Row]:
    """Rows of the balanced mix, each with one changed assumption."""
    changes: dict[str, Callable[[Setup], Setup]] = {
        "as stated": lambda one: one,
        "every GPU of a kind at one price": _one_price,
        f"A100 and H100 linked at {_PCIE_GB_S:.0f} GB/s": _without_nvlink,
        "lengths of Azure's 2024 traces": _later_lengths,
        f"both: {_PCIE_GB_S:.0f} GB/s, 2024 lengths": lambda s: _without_nvlink(_later_lengths(s)),
        "limits x 0.5": lambda one: _limits(one, 0.5),
        "limits x 2": lambda one: _limits(one, 2.0),
        "rates x 0.4": lambda one: replace(one, req_per_s=0.4 * one.req_per_s),
        "rates x 2.5": lambda one: replace(one, req_per_s=2.5 * one.req_per_s),
    }
    if setup.name == "core":
        changes = {k: v for k, v in changes.items() if "GB/s" not in k}
    found = {name: on_library(change(setup), profile, MIXES[:1])[0]
             for name, change in changes.items()}  # fmt: skip
    found["baselines with several equal nodes"] = on_library(setup, profile, MIXES[:1], 0)[0]
    return [replace(row, name=name) for name, row in found.items()]


def _one_price(setup: Setup) -> Setup:
    each = {node.gpu.name: node.usd_per_h for node in setup.nodes if node.gpus == 1}
    nodes = tuple(replace(n, usd_per_h=n.gpus * each[n.gpu.name]) for n in setup.nodes)
    return replace(setup, nodes=nodes)


def _without_nvlink(setup: Setup) -> Setup:
    def slowed(speed: float) -> float:
        return min(speed, _PCIE_GB_S)

    nodes = tuple(
        replace(n, gpu=replace(n.gpu, interconnect_gb_s=slowed(n.gpu.interconnect_gb_s)))
        for n in setup.nodes
    )
    return replace(setup, nodes=nodes)


def _later_lengths(setup: Setup) -> Setup:
    return replace(setup, models=tuple(replace(m, lengths=_LATER[m.lengths]) for m in setup.models))


def _limits(setup: Setup, factor: float) -> Setup:
    models = tuple(
        replace(m, prefill_ms=factor * m.prefill_ms, decode_ms=factor * m.decode_ms)
        for m in setup.models
    )
    return replace(setup, models=models)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 2 bad input."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.experiments.coral_models")
    parser.add_argument("--setup", choices=list(SETUPS), default="core")
    parser.add_argument("--mix", nargs="+", choices=MIXES, default=list(MIXES))
    parser.add_argument("--library", choices=("coral", "vllm"), default="coral")
    parser.add_argument("--vary", action="store_true", help="one assumption at a time")
    args = parser.parse_args(argv)
    profile, setup = default_profile(), SETUPS[args.setup]
    try:
        if args.vary:
            lines = _varied_table(setup, varied(setup, profile))
        elif args.library == "vllm":
            lines = _table(setup, on_vllm(setup, profile, args.mix))
        else:
            lines = _table(setup, on_library(setup, profile, args.mix))
        print("\n".join(["", *lines]))
    except InvalidValue as error:
        print(f"coral_models: {error}", file=sys.stderr)
        return 2
    return 0


def _progress_line(setup: Setup, row: Row) -> str:
    return (
        f"{setup.name}, {row.name}: ours {row.usd_per_h:.2f} USD/h, "
        f"Homo x{row.homo:.2f}, Cauchy x{row.cauchy:.2f}"
    )


def _table(setup: Setup, rows: Sequence[Row]) -> list[str]:
    heads = ["demand", "ours USD/h", "Homo", "paper", "Cauchy", "paper"]
    cells = []
    for row in rows:
        theirs = PAPER[setup.name, row.name]
        cells.append(
            [row.name, f"{row.usd_per_h:.2f}", f"x{row.homo:.2f}", f"x{theirs[0]:g}",
             f"x{row.cauchy:.2f}", f"x{theirs[1]:g}"]
        )  # fmt: skip
    return rows_of(heads, cells)


def _varied_table(setup: Setup, rows: Sequence[Row]) -> list[str]:
    last = setup.models[-1].name
    heads = ["changed", "ours USD/h", "Homo", "Cauchy", f"{last}: Homo", "Cauchy"]
    cells = [
        [row.name, f"{row.usd_per_h:.2f}", f"x{row.homo:.2f}", f"x{row.cauchy:.2f}",
         *(f"x{ratio:.2f}" for ratio in row.largest or ())]
        for row in rows
    ]  # fmt: skip
    theirs = PAPER[setup.name, MIXES[0]]
    largest = PAPER_LARGEST[setup.name]
    cells.append(["the paper", "", *(f"x{ratio:g}" for ratio in (*theirs, *largest))])
    return rows_of(heads, cells)


if __name__ == "__main__":
    sys.exit(main())
