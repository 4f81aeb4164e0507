"""Builders of plan requests for tests, on pools of one region."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from autoscaler.domain.cluster import Cluster, Market, Policy, Pool, Service
from autoscaler.domain.combo import Combo
from autoscaler.domain.workload import Demand, Lengths, Slo
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.planning.candidate_combos import evaluate_combo
from autoscaler.planning.planner import answer_request
from autoscaler.planning.planner_messages import PlanAnswer, PlanRequest, RunningGroup, Urgency
from autoscaler.rollout.serving_group import combo_id_of
from autoscaler.simulation.strategies.registry import STRATEGIES
from tests.unit.planning.planning_clusters import CONVERSATION, pool, service

PROFILE = default_profile()
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
L4 = pool("r", "l4", "L4", 1, 12, Market.ON_DEMAND, 0.85)
L4_SPOT = pool("r", "l4", "L4", 1, 12, Market.SPOT, 0.32)
H100 = pool("r", "h100", "H100", 4, 4, Market.ON_DEMAND, 12.0)
URGENT, FULL = Urgency.URGENT, Urgency.FULL


def one_model(
    pools: tuple[Pool, ...], policy: Policy | None = None, name: str = "m", **more: object
) -> Cluster:
    return Cluster(pools, (mini(name, **more),), policy or Policy())


def mini(name: str, **more: object) -> Service:
    return service(name, LLAMA, Slo(4000.0, 150.0), **more)  # type: ignore[arg-type]


def running_groups(fleet: Mapping[str, int]) -> tuple[RunningGroup, ...]:
    """The groups of `fleet` (combo id -> count). All of them serve."""
    return tuple(
        RunningGroup(f"{combo_id}:{serial}", combo_id)
        for combo_id, count in fleet.items()
        for serial in range(count)
    )


def leaving(got: PlanAnswer) -> Counter[str]:
    """The number of groups that leave, by combo id."""
    return Counter(combo_id_of(name) for name in got.change.leaves)


def ask(
    cluster: Cluster,
    urgency: Urgency,
    demands: dict[str, float],
    fleet: dict[str, int] | None = None,
    strategy: str = "shoal",
    lengths: Lengths = CONVERSATION,
    **more: object,
) -> PlanAnswer:
    request = PlanRequest(
        number=1,
        urgency=urgency,
        at_ms=0,
        demands=tuple(Demand(model, rate, lengths) for model, rate in demands.items()),
        fleet=tuple((fleet or {}).items()),
        scope=tuple(demands),
        groups=running_groups(fleet or {}),
        **more,  # type: ignore[arg-type]
    )
    return answer_request(request, cluster, PROFILE, STRATEGIES[strategy])


def at(cluster: Cluster, combo_id: str, lengths: Lengths = CONVERSATION) -> Combo:
    model = combo_id.partition(":")[0]
    return evaluate_combo(combo_id, cluster, cluster.service(model), lengths, PROFILE)


def capacity(cluster: Cluster, counts: Iterable[tuple[str, int]], model: str = "m") -> float:
    return sum(n * at(cluster, i).req_per_s for i, n in counts if i.startswith(f"{model}:"))


def rented(counts: dict[str, int]) -> tuple[tuple[str, int], ...]:
    """Nodes that one-GPU combos with `counts` take in one-GPU pools."""
    return tuple((combo_id.partition("@")[2], n) for combo_id, n in counts.items())


def usd(answered: PlanAnswer) -> float:
    return answered.cost_usd_per_h


# Removals and other changes that the request permits
