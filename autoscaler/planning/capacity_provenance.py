"""Provenance of a plan's capacities: do they rest on the user's measurements or on predictions? The
functions return the measurements used, the error intervals of capacities, and the rates of combos
without the reduction for uncertainty ("caution").
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace

from autoscaler.domain.cluster import Cluster, Service
from autoscaler.domain.combo import Combo, ComboMember
from autoscaler.domain.hardware import GpuSpec
from autoscaler.domain.measured_room import MeasuredRoom
from autoscaler.domain.measurement import Measurement
from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.workload import Phase
from autoscaler.performance.intervals import rate_interval
from autoscaler.performance.measured_rooms import with_rooms
from autoscaler.performance.memory import cache_of
from autoscaler.performance.profile import Profile
from autoscaler.planning.instances import cautious_share
from autoscaler.planning.plan import Plan
from autoscaler.planning.planning_problem import PlanningProblem


@dataclass(frozen=True, slots=True)
class Capacity:
    """Requests/s of all instances of one model: predicted, with its 90% interval (low, high), and
    planned, i.e. reduced for uncertainty."""

    predicted: float
    low: float
    high: float
    planned: float


def measurements_in(
    problem: PlanningProblem, plan: Plan, profile: Profile
) -> tuple[tuple[str, Measurement], ...]:
    """(model, measurement) for every measured GPU type on which `plan` puts the model."""
    found: dict[tuple[str, str, int], Measurement] = {}
    for target in plan.targets:
        if not target.count:
            continue
        if target.combo.paths:
            continue
        spec = problem.cluster.service(target.combo.model).architecture
        for member in target.combo.members:
            gpu = problem.cluster.pool(member.pool).gpu
            own = profile.measurement(spec, gpu, member.gpus)
            if own is not None:
                found[target.combo.model, own.gpu, own.tp] = own
    return tuple((model, own) for (model, _, _), own in found.items())


def with_measured_rooms(service: Service, rooms: tuple[MeasuredRoom, ...]) -> Service:
    """`service` with those of `rooms` that hold for its settings."""
    spec = with_rooms(service.architecture, rooms, service.max_len_tokens)
    return service if spec == service.architecture else replace(service, architecture=spec)


@dataclass(frozen=True, slots=True)
class KvCache:
    """The KV cache of one instance of a model on a slice, in tokens of requests of maximal length.
    is_measured: whether an engine stated it at a start."""

    model: str
    gpu: str
    gpus: int
    tokens: int
    is_measured: bool


def kv_caches(problem: PlanningProblem, plan: Plan) -> tuple[KvCache, ...]:
    """The KV cache of every slice on which `plan` puts a model. Pooling models and pipelines over
    several nodes have none here."""
    found: dict[tuple[str, str, int], KvCache] = {}
    for target in plan.targets:
        service = problem.cluster.service(target.combo.model)
        if not target.count or target.combo.paths or service.architecture.pooling:
            continue
        for member in target.combo.members:
            if member.stage:
                continue
            gpu, gpus = problem.cluster.pool(member.pool).gpu, member.gpus
            found[service.model, gpu.name, gpus] = kv_cache(service, gpu, gpus)
    return tuple(found.values())


def kv_cache(service: Service, gpu: GpuSpec, gpus: int) -> KvCache:
    """The KV cache of one instance of `service` on `gpus` GPUs of type `gpu`."""
    spec = service.architecture
    longest = min(service.max_len_tokens, spec.max_position)
    tokens = int(cache_of(spec, gpu, gpus).reported_tokens(longest))
    is_measured = spec.room(gpu.name, gpus) is not None
    return KvCache(service.model, gpu.name, gpus, tokens, is_measured)


def capacities(problem: PlanningProblem, plan: Plan, profile: Profile) -> dict[str, Capacity]:
    """The capacity of every model with instances. The prediction errors of a model's instances are
    assumed to be fully correlated, so their intervals add up."""
    found: dict[str, Capacity] = {}
    for target in plan.targets:
        combo = target.combo
        if not target.count or combo.model not in plan.capacity_req_per_s or combo.paths:
            continue
        spec = problem.cluster.service(combo.model).architecture
        held = [(problem.cluster.pool(m.pool).gpu, m.gpus) for m in combo.members]
        bounds = [
            rate_interval(spec, profile.measurement(spec, gpu, gpus), gpu.name)
            for gpu, gpus in held
        ]
        rate = target.count * without_caution(combo, problem.cluster, profile).req_per_s
        before = found.get(combo.model, Capacity(0.0, 0.0, 0.0, 0.0))
        found[combo.model] = Capacity(
            before.predicted + rate,
            before.low + rate * min(bound[0] for bound in bounds),
            before.high + rate * max(bound[1] for bound in bounds),
            before.planned + target.count * combo.req_per_s,
        )
    return found


def prediction_of(combo: Combo, cluster: Cluster, profile: Profile) -> tuple[float, float]:
    """(predicted rate, upper end of its interval) of `combo`, as multiples of its planned rate."""
    spec = cluster.service(combo.model).architecture
    predicted = without_caution(combo, cluster, profile).req_per_s / combo.req_per_s
    held = {(cluster.pool(member.pool).gpu, member.gpus) for member in combo.members}
    high = min(
        rate_interval(spec, profile.measurement(spec, gpu, gpus), gpu.name)[1] for gpu, gpus in held
    )
    return predicted, predicted * high


def cautious_gpus(combo: Combo, cluster: Cluster, profile: Profile) -> set[str]:
    """The GPU types of `combo` on which plans use less than the predicted rate."""
    service = cluster.service(combo.model)
    return {
        cluster.pool(member.pool).gpu.name
        for member in combo.members
        if _share(service, member, cluster, profile) < 1.0
    }


def without_caution(
    combo: Combo, cluster: Cluster, profile: Profile, gpus: Container[str] | None = None
) -> Combo:
    """`combo` with its rates as predicted, without the reduction for uncertainty. gpus: only on
    these GPU types."""
    service = cluster.service(combo.model)
    factors: dict[Phase, float] = {}
    for phase in {member.phase for member in combo.members}:
        shares = [
            (cluster.pool(member.pool).gpu.name, _share(service, member, cluster, profile))
            for member in combo.members
            if member.phase is phase
        ]
        now = min(share for _, share in shares)
        then = min(1.0 if gpus is None or gpu in gpus else share for gpu, share in shares)
        factors[phase] = then / now
    if all(factor == 1.0 for factor in factors.values()):
        return combo
    members = tuple(replace(m, req_per_s=m.req_per_s * factors[m.phase]) for m in combo.members)
    # All members of a stage serve its rate together, so rates are kept by phase and stage.
    rates: dict[tuple[Phase, int], float] = {}
    for member in members:
        key = member.phase, member.stage
        rates[key] = rates.get(key, 0.0) + member.count * member.req_per_s
    return replace(combo, members=members, req_per_s=min(rates.values()))


def _share(service: Service, member: ComboMember, cluster: Cluster, profile: Profile) -> float:
    return cautious_share(service, NodeSlice(cluster.pool(member.pool).gpu, member.gpus), profile)
