"""What the solver process does with a question. Pure: the cluster and the question come in.

Owns the translation between what `decide` asks for and what planning offers.
"""

from __future__ import annotations

from autoscaler.controller_state import Refinement
from autoscaler.domain.checks import InvalidValue
from autoscaler.domain.cluster import Cluster
from autoscaler.domain.combo import Combo
from autoscaler.domain.workload import Lengths
from autoscaler.effects import RefinementRequested, ScaleOutTablesRequested
from autoscaler.performance.profile import Profile, default_profile
from autoscaler.planning.combos import combo_named
from autoscaler.planning.plan import PlanStatus, plan
from autoscaler.planning.problem import PlanOptions, make_problem
from autoscaler.planning.strategies.shoal import Shoal
from autoscaler.planning.tables import build_tables
from streams.solver.wire import Answer, Question

STRATEGY = Shoal()
GAP = 0.005
"""Refinements stop here: half a per cent of the bill is below what a change costs."""


def solve(question: Question, cluster: Cluster) -> Answer:
    """The answer to `question`. Raises what planning raises."""
    profile = default_profile()
    if isinstance(question, ScaleOutTablesRequested):
        return tuple(build_tables(cluster, dict(question.lengths), None, profile).values())
    return _refine(question, cluster, profile)


def _refine(question: RefinementRequested, cluster: Cluster, profile: Profile) -> Refinement:
    """The cheapest fleet with its proof, or timed_out when none came out: then nothing follows."""
    lengths = {demand.model: demand.lengths for demand in question.demands}
    combos = _running(question, cluster, lengths, profile)
    offered = {**dict(question.obtainable), **dict.fromkeys(question.scarce, 0)}
    known = {pool.id for pool in cluster.pools}
    made = plan(
        make_problem(
            cluster,
            {demand.model: demand for demand in question.demands},
            profile,
            fleet={combo.id: count for combo, count in combos},
            obtainable={pool: nodes for pool, nodes in offered.items() if pool in known},
            scope=question.scope,
            options=PlanOptions(gap=GAP),
        ),
        STRATEGY,
    )
    missing = tuple(sorted((m, r) for m, r in made.shortfall_req_per_s.items() if r > 0))
    if made.status is PlanStatus.FAILED:
        return Refinement(question.request, timed_out=True, shortfall_req_per_s=missing)
    targets = tuple(
        (target.combo.model, target.combo.id, target.count)
        for target in made.targets
        if target.count and target.combo.model in question.scope
    )
    return Refinement(question.request, targets, STRATEGY.name, made.gap, missing)


def _running(
    question: RefinementRequested, cluster: Cluster, lengths: dict[str, Lengths], profile: Profile
) -> list[tuple[Combo, int]]:
    """What runs, as combos; one that the declared pools no longer allow is left out."""
    found = []
    for model, combo_id, count in question.running:
        try:
            service = cluster.service(model)
            found.append((combo_named(combo_id, cluster, service, lengths[model], profile), count))
        except (InvalidValue, KeyError):
            continue
    return found
