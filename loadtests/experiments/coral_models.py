"""Coral, sec. 6.3 and 6.5: cost of our plans, of Cauchy's and of homogeneous ones.

Models, SLOs, nodes and prices: `coral_setup`. Each plan is for the mean rate of one epoch, without
a limit on nodes and without start penalties (under 1% in the paper).

coral     our plan over Coral's full library (any nodes in an instance, several nodes in a stage),
          the baselines over that library's single nodes, which they choose in the paper
vllm      our plan over deployments that vLLM can run (pipelines, matched pairs, one GPU type in a
          tensor-parallel group), the baselines over such deployments on single nodes; latencies
          include waiting
"""

from __future__ import annotations

from collections.abc import Mapping
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
    REGIONS,
    SETUPS,
    Setup,
    instance,
    libraries,
    ours,
    pairs,
)
from loadtests.results.entry import Figures

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
PLENTY = 400
_LIMIT_S = 600.0
_METHODS = ("shoal", "homo", "cauchy")


@dataclass(frozen=True, slots=True)
class Row:
    """Cost of our plan in USD/h, and costs of Homo and Cauchy relative to it."""

    name: str
    usd_per_h: float
    homo: float
    cauchy: float


def on_library(setup: Setup, profile: Profile) -> list[Row]:
    """Costs over Coral's full library."""
    made, rows = libraries(setup, profile), []
    for mix in MIXES:
        problem = instance(setup, made, mix, PLENTY)
        plans = (
            ours(problem, 0.002),
            homo(problem, 1),
            cauchy(problem, pairs(setup), _LIMIT_S, 1),
        )
        for method, plan in zip(_METHODS, plans, strict=True):
            if (account(problem, plan)[1] < problem.demand_req_per_s * (1.0 - 1e-6)).any():
                raise InvalidValue(f"{setup.name}, {mix}: {method}", "short", "all demand served")
        costs = [account(problem, plan)[0] for plan in plans]
        rows.append(Row(mix, costs[0], costs[1] / costs[0], costs[2] / costs[0]))
    return rows


def on_vllm(setup: Setup, profile: Profile) -> list[Row]:
    """Costs over deployments that vLLM can run."""
    cluster, rows = _cluster(setup), []
    gpus = {pool.id: pool.gpu.name for pool in cluster.pools}
    for mix in MIXES:
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


def measure(seed: int, setup: str, library: str) -> Figures:
    """Costs of all mixes. setup: core or extended. library: coral or vllm."""
    del seed
    rows_of = on_vllm if library == "vllm" else on_library
    rows = rows_of(SETUPS[setup], default_profile())
    return {
        row.name: {"usd_per_h": row.usd_per_h, "homo": row.homo, "cauchy": row.cauchy}
        | {"paper_homo": theirs[0], "paper_cauchy": theirs[1]}
        for row in rows
        for theirs in (PAPER[setup, row.name],)
    }
