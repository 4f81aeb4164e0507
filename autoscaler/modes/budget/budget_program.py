"""Budget mode as arrays: the most work that a budget buys, and the combos for each type of request.

The program of Demystifying Cost-Efficiency (sec. 4) over Shoal's candidate combos, pools, prices
and limits. One solve decides the nodes (composition), the combos on them (configuration) and the
fraction of each workload type that each combo serves (assignment). Several models share the budget
(App. E). The problem stays feasible if fixed instances exceed a limit. If a floor cannot be met,
the plan meets as much of it as possible. This module translates a planning problem to the arrays of
`optimizer.activity_lp`, and the solution back.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autoscaler.domain.cluster import Market, Objective
from autoscaler.domain.combo import Combo
from autoscaler.domain.reason import Reason
from autoscaler.optimizer.activity_lp import Mix, MixProblem, alone, most_copies, reachable
from autoscaler.optimizer.array_types import Floats, Ints
from autoscaler.planning.ceilings import ceilings
from autoscaler.planning.combo_usage import is_spot
from autoscaler.planning.decode_solution import all_combos
from autoscaler.planning.plan import RequestShare
from autoscaler.planning.planning_problem import PlanningProblem
from autoscaler.planning.workload_types import TypedDemand
from topics.reason_codes import ReasonCode

_MIN_GAIN = 1e-3
"""Relative gain in work from which a limit counts as binding."""
_NEGLIGIBLE_REQ_PER_S = 1e-6
"""Rate in requests/s of a combo that serves nothing, because a combo's rate must be above 0."""
_FLOOR_WORK_SHARE = 1e-3
"""The floors must leave at least this fraction of the work that is possible without floors."""


@dataclass(frozen=True, slots=True)
class BudgetArrays:
    """Combos (n), types (w) and the arrays of the MIP.

    combo_of (a,): combo index of each activity. There is one activity for each combo and each type
    that the combo serves within the SLO. Its rate is the combo's rate for that type alone,
    multiplied by the service's utilization if the rate must be sustained. unserved: types of the
    problem that no combo serves.
    """

    types: tuple[TypedDemand, ...]
    combos: tuple[Combo, ...]
    combo_of: Ints
    mix: MixProblem
    unserved: tuple[TypedDemand, ...]


def budget_arrays(problem: PlanningProblem) -> BudgetArrays:
    """The arrays of `problem`, which must have types."""
    everything = all_combos(problem)
    fixed = problem.fixed_fleet()
    combos = tuple(
        everything[i]
        for i in sorted(everything)
        if problem.is_planned(everything[i].model) or i in fixed
    )
    served = [typed for typed in problem.types if any(c.id in typed.combos for c in combos)]
    rates = np.zeros((len(combos), len(served)))
    for w, typed in enumerate(served):
        most = _utilization(problem, typed.model)
        for i, combo in enumerate(combos):
            if combo.id in typed.combos:
                rates[i, w] = typed.combos[combo.id].req_per_s * most
    busy, type_of, combo_of = alone(rates)
    pools = problem.cluster.pools
    services = [problem.cluster.service(model) for model in problem.planned_models()]
    of = np.array([[float(combo.model == s.model) for combo in combos] for s in services]).reshape(
        len(services), len(combos)
    )
    asks = np.array([[float(typed.model == s.model) for typed in served] for s in services])
    spot = np.array([float(is_spot(combo)) for combo in combos])
    limited = [k for k, s in enumerate(services) if s.spot_share < 1.0]
    together, together_max = ceilings(pools)
    stays = problem.fixed_gpus()
    bill = np.array([float(problem.fixed_nodes(p, stays.get(p.id, 0))) for p in pools])
    usd = np.array([0.0 if p.market is Market.OWNED else p.price_usd_per_h for p in pools])
    to_have = np.array([float(problem.nodes_now(p) + problem.rentable_nodes(p)) for p in pools])
    taken = np.array([float(problem.taken_gpus.get(pool.id, 0)) for pool in pools])
    per_node = np.array([float(pool.per_node) for pool in pools])
    # If fixed combos need more nodes than exist, these nodes have no room for further instances.
    rest = bill * per_node - np.array([float(stays.get(pool.id, 0)) for pool in pools])
    taken = taken + np.where(bill > to_have, rest, 0.0)
    standing = np.array([float(sum(n for _, n in problem.fixed_combos(s.model))) for s in services])
    running = np.array([float(problem.fleet.get(combo.id, 0)) for combo in combos])
    policy = problem.cluster.policy
    mix = MixProblem(
        busy=busy,
        type_of=type_of,
        work=np.array([typed.req_per_s for typed in served]),
        usage=np.array(
            [[float(c.gpus_by_pool().get(pool.id, 0)) for c in combos] for pool in pools]
        ).reshape(len(pools), len(combos)),
        node_gpus=per_node,
        node_usd_per_h=usd,
        # Fixed instances may exceed the limits; the rest of the budget is still planned.
        node_max=np.maximum(to_have, bill),
        budget_usd_per_h=max(policy.budget_usd_per_h, float(bill @ usd)),
        together=together,
        together_max=np.maximum(together_max, together @ bill),
        groups=of,
        copies_min=_floors(problem, of),
        copies_max=np.maximum(standing, [float(s.max_instances or math.inf) for s in services]),
        capped=(of[limited] * spot)[:, combo_of],
        capped_types=asks[limited],
        capped_share=np.array([services[k].spot_share for k in limited]),
        taken=taken,
        node_min=np.where(usd > 0.0, bill, 0.0),
        running=running,
        start_usd_per_h=np.array([policy.k_start * c.usd_per_h for c in combos]),
        copies_low=np.array([float(fixed.get(combo.id, 0)) for combo in combos]),
    )
    unserved = tuple(typed for typed in problem.types if typed not in served)
    return BudgetArrays(tuple(served), combos, combo_of, mix, unserved)


def without_floors(arrays: BudgetArrays) -> BudgetArrays:
    """`arrays` with a minimum of 0 copies for every model."""
    none = np.zeros(len(arrays.mix.copies_min))
    return replace(arrays, mix=replace(arrays.mix, copies_min=none))


def with_feasible_floors(
    problem: PlanningProblem, arrays: BudgetArrays, multiple: float, seconds: float
) -> BudgetArrays:
    """`arrays` with as much of every floor as is feasible, the most important model first.

    multiple: the work that is possible without floors.
    """
    floors = arrays.mix.copies_min
    models = problem.planned_models()
    found = without_floors(arrays)
    asked = [k for k in by_importance(problem, models) if floors[k] > 0.0]
    for k in asked:
        got = most_copies(found.mix, k, _FLOOR_WORK_SHARE * multiple, seconds / len(asked))
        least: Floats = found.mix.copies_min.copy()
        least[k] = min(floors[k], got)
        found = replace(found, mix=replace(found.mix, copies_min=least))
    return found


def by_importance(problem: PlanningProblem, models: Sequence[str]) -> list[int]:
    """Indices of `models`, sorted by priority and then by demand, the highest first."""
    rates = dict.fromkeys(models, 0.0)
    for typed in problem.types:
        rates[typed.model] = rates.get(typed.model, 0.0) + typed.req_per_s

    def importance(k: int) -> tuple[int, float, str]:
        return problem.cluster.service(models[k]).priority, rates[models[k]], models[k]

    return sorted(range(len(models)), key=importance, reverse=True)


def request_shares(arrays: BudgetArrays, mix: Mix) -> tuple[RequestShare, ...]:
    """The share of each combo in each workload type. A planned or running combo that could serve a
    type, but does not, has the share 0."""
    found = []
    for a, c in enumerate(arrays.combo_of):
        combo, typed = arrays.combos[c], arrays.types[arrays.mix.type_of[a]]
        if mix.copies[c] or arrays.mix.running[c]:
            fraction = float(mix.fractions[a])
            found.append(RequestShare(typed.model, typed.type.name, combo.id, fraction))
    return tuple(found)


def combos_as_used(problem: PlanningProblem, arrays: BudgetArrays, mix: Mix) -> dict[str, Combo]:
    """The combos with the rates that they have under the plan: each copy serves its part of the
    planned work.

    A combo that the plan does not use gets the rate that it would have for the whole mix.
    """
    found = {}
    for c, combo in enumerate(arrays.combos):
        mine = np.flatnonzero(arrays.combo_of == c)
        types = [arrays.types[w] for w in arrays.mix.type_of[mine]]
        work = arrays.mix.work[arrays.mix.type_of[mine]]
        done = (mix.fractions[mine] * work * mix.multiple).tolist()
        if mix.copies[c] and sum(done) > 0.0:
            rate = sum(done) / int(mix.copies[c]) / _utilization(problem, combo.model)
            used = [(typed, part) for typed, part in zip(types, done, strict=True) if part > 0.0]
        else:
            used = [(typed, typed.req_per_s) for typed in types]
            total = sum(part for _, part in used)
            spent = sum(part / typed.combos[combo.id].req_per_s for typed, part in used)
            rate = total / spent if used and not mix.copies[c] else _NEGLIGIBLE_REQ_PER_S
        found[combo.id] = _as_used(combo, rate, used)
    return found


def _as_used(combo: Combo, rate: float, used: list[tuple[TypedDemand, float]]) -> Combo:
    """`combo` with the rate `rate`, and with the latencies and lengths of the types that it
    serves."""
    if not used:
        return replace(combo.scaled_to(_NEGLIGIBLE_REQ_PER_S), meets_slo=False)
    evaluated = [typed.combos[combo.id] for typed, _ in used]
    total = sum(part for _, part in used)
    return replace(
        evaluated[0].scaled_to(max(rate, _NEGLIGIBLE_REQ_PER_S)),
        ttft_ms=max(one.ttft_ms for one in evaluated),
        tpot_ms=max(one.tpot_ms for one in evaluated),
        output_tokens=sum(t.type.lengths.output_tokens * part for t, part in used) / total,
    )


def binding_limits(
    problem: PlanningProblem, arrays: BudgetArrays, mix: Mix, seconds: float
) -> tuple[Reason, ...]:
    """The limits that reduce the work: if one of them is removed, a new solve does more."""
    limits = list(_relaxed_limits(problem, arrays.mix, mix))
    each = max(0.05, seconds / max(1, len(limits)))
    enough = mix.multiple * (1.0 + _MIN_GAIN)
    return tuple(limit for limit, freer in limits if reachable(freer, each) > enough)


def _relaxed_limits(
    problem: PlanningProblem, arrays: MixProblem, mix: Mix
) -> Iterator[tuple[Reason, MixProblem]]:
    budget = (problem.cluster.policy.budget_usd_per_h,)
    freer = replace(arrays, budget_usd_per_h=math.inf)
    yield Reason(ReasonCode.BUDGET, "*", quantities=budget), freer
    for k, pool in enumerate(problem.cluster.pools):
        if mix.nodes[k] >= arrays.node_max[k] > 0:
            more: Floats = arrays.node_max.copy()
            more[k] *= 2.0
            freer = replace(arrays, node_max=more)
            if pool.max_of_both:
                freer = replace(freer, together_max=2.0 * arrays.together_max)
            nodes = (float(arrays.node_max[k]),)
            yield Reason(ReasonCode.POOL_FULL, pool.id, quantities=nodes), freer
    if len(arrays.capped):
        freer = replace(arrays, capped_share=np.ones(len(arrays.capped)))
        yield Reason(ReasonCode.SPOT_SHARE, "*"), freer


def _utilization(problem: PlanningProblem, model: str) -> float:
    """The share of a copy's time that a plan may use; all of the time for a batch."""
    if problem.cluster.policy.objective is Objective.MAKESPAN:
        return 1.0
    return problem.cluster.service(model).utilization


def _floors(problem: PlanningProblem, of: Floats) -> Floats:
    """Minimum copies per planned model; 0 for a model without any combo."""
    least = [problem.cluster.service(m).min_instances for m in problem.planned_models()]
    return np.array([float(n) if row.any() else 0.0 for n, row in zip(least, of, strict=True)])


def without_models(problem: PlanningProblem, models: Collection[str]) -> PlanningProblem:
    """`problem` without demand and floors of `models`, so that they get no capacity."""
    services = tuple(
        replace(s, min_instances=0) if s.model in models else s for s in problem.cluster.services
    )
    return replace(
        problem,
        cluster=replace(problem.cluster, services=services),
        types=tuple(typed for typed in problem.types if typed.model not in models),
    )


def with_combos(problem: PlanningProblem, by_id: Mapping[str, Combo]) -> PlanningProblem:
    """`problem` with the combos `by_id` in place of its combos with the same ids."""
    return replace(
        problem,
        candidates={
            model: tuple(by_id.get(combo.id, combo) for combo in combos)
            for model, combos in problem.candidates.items()
        },
        running={i: by_id.get(i, combo) for i, combo in problem.running.items()},
    )
