"""Cauchy's strategies: the deployment ILP of eq. 16 and the two it is compared with.

Owns their objectives. They know no running fleet, no whole nodes and no transitions: that is the
difference to `shoal`, and their plans are billed by the same rules.
Source: Cauchy sec. 3.3.2 and 4.3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autoscaler.domain.checks import InvalidValue
from autoscaler.domain.cluster import Market
from autoscaler.domain.combo import Combo
from autoscaler.domain.slices import SLICE_SIZES
from autoscaler.domain.workload import Lengths
from autoscaler.planning.combo_ilp import Column, CoverProblem, CoverStatus, solve_cover
from autoscaler.planning.combos import ranking_usd_per_h
from autoscaler.planning.cost_efficiency import combo_tokens_per_usd
from autoscaler.planning.modelrows import limits_spot, missing_req_per_s
from autoscaler.planning.plan import Plan, PlanStatus
from autoscaler.planning.problem import PlanningProblem
from autoscaler.planning.readback import failed, read_back
from autoscaler.planning.room import PoolRoom

Objective = Callable[[float, float], float]
"""Weight of one combo, from its USD/h and its tokens per USD."""


def eq16(usd_per_h: float, tokens_per_usd: float) -> float:
    """P_n / C_n: cost and cost efficiency together (scaled by 1e6)."""
    return 1e6 * usd_per_h / tokens_per_usd


def most_efficient(usd_per_h: float, tokens_per_usd: float) -> float:
    """1 / C_n: cost efficiency alone. Price does not count, so large combos win (MCE-LP)."""
    del usd_per_h
    return 1e6 / tokens_per_usd


def cheapest(usd_per_h: float, tokens_per_usd: float) -> float:
    """P_n: cost alone (MC-LP)."""
    del tokens_per_usd
    return usd_per_h


@dataclass(frozen=True, slots=True)
class CauchyStrategy:
    """An ILP over combos with one objective, through PuLP and HiGHS; goodput first when short."""

    name: str
    objective: Objective

    def solve(self, problem: PlanningProblem) -> Plan:
        """All planned models jointly on all GPUs that models outside the scope leave."""
        cover = solve_cover(self.cover_problem(problem))
        if cover.status is CoverStatus.FAILED:
            return failed(problem, self.name, "the solver returned no plan", ())
        columns = _combos(problem)
        counts = {c.id: n for c, n in zip(columns, cover.counts, strict=True)}
        status = {
            CoverStatus.SHORT: PlanStatus.BEST_EFFORT,
            CoverStatus.LIMIT: PlanStatus.LIMIT,
        }.get(cover.status, PlanStatus.HEURISTIC)
        limits = ("time_limit",) if cover.status is CoverStatus.LIMIT else ()
        try:
            return read_back(problem, self.name, counts, status, limits_hit=limits)
        except InvalidValue as error:
            return failed(problem, self.name, f"the solver's plan does not hold: {error}", limits)

    def cover_problem(self, problem: PlanningProblem) -> CoverProblem:
        """The ILP of this strategy: its columns are the candidates of the planned models."""
        cluster = problem.cluster
        missing = {m: missing_req_per_s(problem, m) for m in problem.planned_models()}
        columns = []
        for combo in _combos(problem):
            weight = self._weight(combo, problem, problem.demands[combo.model].lengths)
            columns.append(Column(combo, weight))
        services = [cluster.service(model) for model in missing]
        stand = {s.model: sum(n for _, n in problem.standing_of(s.model)) for s in services}
        return CoverProblem(
            columns=tuple(columns),
            demand_req_per_s=missing,
            room=room_for_all(problem),
            spot_limit_req_per_s={
                s.model: s.spot_share * missing[s.model]
                for s in services
                if limits_spot(problem, s)
            },
            floors={
                s.model: max(0, s.min_instances - stand[s.model])
                for s in services
                if s.min_instances
            },
            ceilings={
                s.model: max(0, s.max_instances - stand[s.model])
                for s in services
                if s.max_instances
            },
            time_limit_s=problem.options.time_limit_s,
            relative_gap=problem.options.gap,
            seed=problem.options.seed,
        )

    def _weight(self, combo: Combo, problem: PlanningProblem, lengths: Lengths) -> float:
        usd_per_h = ranking_usd_per_h(combo, problem.pools())
        return self.objective(usd_per_h, combo_tokens_per_usd(lengths, combo.req_per_s, usd_per_h))


def room_for_all(problem: PlanningProblem) -> dict[str, PoolRoom]:
    """Whole pools, less what stands; nodes there and to get alike."""
    standing = problem.standing_gpus()
    room = {}
    for pool in problem.cluster.pools:
        nodes = problem.nodes_now(pool) + problem.nodes_to_get(pool)
        left = max(0, nodes * pool.per_node - standing.get(pool.id, 0))
        whole_nodes, rest = divmod(left, pool.per_node)
        blocks = [rest >> power & 1 for power in range(4)]
        blocks[SLICE_SIZES.index(pool.per_node)] += whole_nodes
        price = 0.0 if pool.market is Market.OWNED else pool.price_usd_per_h
        free = (blocks[0], blocks[1], blocks[2], blocks[3])
        room[pool.id] = PoolRoom(pool.per_node, free, 0, price)
    return room


def _combos(problem: PlanningProblem) -> list[Combo]:
    return [c for model in problem.planned_models() for c in problem.candidates[model]]
