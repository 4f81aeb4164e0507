"""Budget mode: the most work that a budget buys, and which type of request goes where.

Demystifying Cost-Efficiency (sec. 4) over our columns: the same candidate combos, pools, prices and
limits as every other plan. What is decided together: which nodes (composition), which combos on
them (configuration) and the fraction of each workload type that each combo serves (assignment).
Several models share the budget (App. E). Knows no solver's arrays beyond `optimizer.mixture`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from autoscaler.domain.checks import InvalidValue, finite
from autoscaler.domain.cluster import Cluster, Service
from autoscaler.domain.combo import Combo
from autoscaler.domain.workload import Arrivals, WorkloadType
from autoscaler.optimizer.arrays import Ints
from autoscaler.optimizer.mixture import Mix, MixProblem, alone, most_work, reachable
from autoscaler.performance.profile import Profile
from autoscaler.planning.ceilings import ceilings
from autoscaler.planning.combos import candidate_combos, combo_named
from autoscaler.planning.usage import is_spot

_KEEP = 8
_MORE = 1e-3
_WHOLE = "all"


class Objective(StrEnum):
    """What is made the most of: a rate that is sustained, or a batch that should end soon."""

    THROUGHPUT = "throughput"
    MAKESPAN = "makespan"


@dataclass(frozen=True, slots=True)
class Typed:
    """One workload type of one model, and its work: requests/s, or requests of a batch."""

    model: str
    type: WorkloadType
    work: float

    @property
    def name(self) -> str:
        """Model and type, as people read it."""
        return self.model if self.type.name == _WHOLE else f"{self.model}/{self.type.name}"


@dataclass(frozen=True, slots=True)
class BudgetProblem:
    """Combos (n), types (w) and the arrays of the MIP.

    combo_of (a,): whose activity each is: one per combo and type that it can serve within the SLO.
    Its rate is the combo's for that type alone, times the service's utilization where a rate is
    to be sustained.
    """

    cluster: Cluster
    objective: Objective
    types: tuple[Typed, ...]
    combos: tuple[Combo, ...]
    combo_of: Ints
    mix: MixProblem

    @property
    def unserved(self) -> tuple[Typed, ...]:
        """Types that no combo serves within the SLO."""
        return tuple(self.types[w] for w in self.mix.unserved)


@dataclass(frozen=True, slots=True)
class Share:
    """`fraction` of a type's requests goes to the copies of one combo."""

    combo: Combo
    type: Typed
    fraction: float


@dataclass(frozen=True, slots=True)
class BudgetPlan:
    """What the budget buys.

    copies: combos and how many. nodes: per pool id. shares: where each type goes; those of one
    type sum to 1. multiple: how often the declared work is done per second (throughput: 1.5 = one
    and a half times the declared rates). bound: no plan reaches more. solved: ended by proof.
    binding: what holds the plan where it is, in words.
    """

    problem: BudgetProblem
    copies: tuple[tuple[Combo, int], ...]
    nodes: Mapping[str, int]
    shares: tuple[Share, ...]
    multiple: float
    bound: float
    usd_per_h: float
    solved: bool
    binding: tuple[str, ...]

    @property
    def gap(self) -> float:
        """How far any plan can be better: bound / multiple - 1."""
        return self.bound / self.multiple - 1.0

    def req_per_s(self) -> float:
        """Requests/s of all types together."""
        return self.multiple * sum(typed.work for typed in self.problem.types)

    def makespan_s(self) -> float:
        """Seconds for all the work, where the work is a batch."""
        return 1.0 / self.multiple


def budget_problem(
    cluster: Cluster,
    work: Mapping[str, float],
    profile: Profile,
    budget_usd_per_h: float,
    objective: Objective = Objective.THROUGHPUT,
    keep: int = _KEEP,
) -> BudgetProblem:
    """The problem of a declared cluster. work: per model, requests/s or requests of a batch.

    keep: candidates per region, set of markets and type. A model without declared types has one.
    InvalidValue names what cannot be.
    """
    finite("budget", budget_usd_per_h, 0.0, 1e9)
    types, combos = [], []
    for service in cluster.services:
        if service.model not in work:
            continue
        amount = finite(f"work of {service.model}", work[service.model], 1e-9, 1e12)
        kinds = service.types or (WorkloadType(_WHOLE, 1.0, service.lengths),)
        types += [Typed(service.model, kind, amount * kind.share) for kind in kinds]
        combos += _candidates(cluster, service, kinds, profile, keep)
    if not types:
        raise InvalidValue("work", dict(work), "at least one declared model")
    rates = np.zeros((len(combos), len(types)))
    for w, typed in enumerate(types):
        service = cluster.service(typed.model)
        most = service.utilization if objective is Objective.THROUGHPUT else 1.0
        for i, combo in enumerate(combos):
            if combo.model == typed.model:
                found = combo_named(combo.id, cluster, service, typed.type.lengths, profile)
                rates[i, w] = found.req_per_s * most if found.meets_slo else 0.0
    _, _, combo_of = alone(rates)
    mix = _arrays(cluster, tuple(types), tuple(combos), rates, budget_usd_per_h)
    return BudgetProblem(cluster, objective, tuple(types), tuple(combos), combo_of, mix)


def plan_budget(problem: BudgetProblem, seconds: float = 60.0, gap: float = 1e-4) -> BudgetPlan:
    """The plan with the most work. InvalidValue says why there is none."""
    if problem.unserved:
        names = ", ".join(typed.name for typed in problem.unserved)
        raise InvalidValue("workload types", names, "types that some GPU can serve within the SLO")
    mix = most_work(problem.mix, seconds, gap)
    if mix is None:
        least = "a larger budget, or pools with room for every declared model"
        raise InvalidValue("budget", problem.mix.budget_usd_per_h, least)
    return as_plan(problem, mix, _binding(problem, mix, seconds / 4.0))


def as_plan(problem: BudgetProblem, mix: Mix, binding: Iterable[str] = ()) -> BudgetPlan:
    """`mix` in words of the cluster."""
    shares = [
        Share(
            problem.combos[problem.combo_of[a]],
            problem.types[problem.mix.type_of[a]],
            float(mix.fractions[a]),
        )
        for a in np.flatnonzero(mix.fractions)
    ]
    pools = problem.cluster.pools
    return BudgetPlan(
        problem=problem,
        copies=tuple(
            (combo, int(count))
            for combo, count in zip(problem.combos, mix.copies, strict=True)
            if count
        ),
        nodes={pool.id: int(n) for pool, n in zip(pools, mix.nodes, strict=True) if n},
        shares=tuple(shares),
        multiple=mix.multiple,
        bound=mix.bound,
        usd_per_h=mix.usd_per_h,
        solved=mix.solved,
        binding=tuple(binding),
    )


def _candidates(
    cluster: Cluster,
    service: Service,
    kinds: tuple[WorkloadType, ...],
    profile: Profile,
    keep: int,
) -> list[Combo]:
    """Combos that are worth considering for any type: the best for one may be the worst for
    another, which is what there is to gain."""
    found: dict[str, Combo] = {}
    for kind in kinds:
        for combo in candidate_combos(cluster, service, kind.lengths, profile, keep, Arrivals()):
            if combo.meets_slo:
                found.setdefault(combo.id, combo)
    return [found[name] for name in sorted(found)]


def _arrays(
    cluster: Cluster,
    types: tuple[Typed, ...],
    combos: tuple[Combo, ...],
    rates: np.ndarray,
    budget_usd_per_h: float,
) -> MixProblem:
    pools = cluster.pools
    usage = np.array(
        [[combo.gpus_by_pool().get(pool.id, 0) for combo in combos] for pool in pools], dtype=float
    ).reshape(len(pools), len(combos))
    services = [s for s in cluster.services if any(typed.model == s.model for typed in types)]
    spot = np.array([is_spot(combo) for combo in combos], dtype=float)
    of = np.array([[combo.model == s.model for combo in combos] for s in services], dtype=float)
    asks = np.array([[typed.model == s.model for typed in types] for s in services], dtype=float)
    together, together_max = ceilings(pools)
    limited = [i for i, s in enumerate(services) if s.spot_share < 1.0]
    busy, type_of, combo_of = alone(rates)
    return MixProblem(
        busy=busy,
        type_of=type_of,
        work=np.array([typed.work for typed in types]),
        usage=usage,
        node_gpus=np.array([float(pool.per_node) for pool in pools]),
        node_usd_per_h=np.array([pool.price_usd_per_h for pool in pools]),
        node_max=np.array([float(pool.max_nodes) for pool in pools]),
        budget_usd_per_h=budget_usd_per_h,
        together=together,
        together_max=together_max,
        groups=of,
        copies_min=np.array([float(s.min_instances) for s in services]),
        copies_max=np.array([float(s.max_instances or math.inf) for s in services]),
        capped=(of[limited] * spot)[:, combo_of],
        capped_types=asks[limited],
        capped_share=np.array([services[i].spot_share for i in limited]),
    )


def _binding(problem: BudgetProblem, mix: Mix, seconds: float) -> list[str]:
    """Limits without which more could be done: each is taken away and the rest planned again."""
    limits = [
        (
            f"budget ({problem.mix.budget_usd_per_h:.2f} USD/h)",
            replace(problem.mix, budget_usd_per_h=math.inf),
        )
    ]
    for k, pool in enumerate(problem.cluster.pools):
        if mix.nodes[k] >= pool.max_nodes > 0:
            more = problem.mix.node_max.copy()
            more[k] *= 2.0
            freer = replace(problem.mix, node_max=more)
            if pool.max_of_both:
                freer = replace(freer, together_max=2.0 * problem.mix.together_max)
            limits.append((f"{pool.id} (all {pool.max_nodes} nodes)", freer))
    if len(problem.mix.capped):
        limits.append(
            ("share on spot", replace(problem.mix, capped_share=np.ones(len(problem.mix.capped))))
        )
    each = seconds / len(limits)
    return [said for said, freer in limits if reachable(freer, each) > mix.multiple * (1.0 + _MORE)]
