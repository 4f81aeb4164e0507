"""Workload types of the planned models: the demand of each type and the combos that serve it.

Long prompts need arithmetic and long answers need memory bandwidth, so the best combo for one type
may be the worst for another. The candidates of all types are evaluated for every type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from autoscaler.domain.cluster import Cluster, Service
from autoscaler.domain.combo import Combo
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Arrivals, Demand, WorkloadType
from autoscaler.performance.profile import Profile
from autoscaler.planning.candidate_combos import candidate_combos, evaluate_combo

ALL_REQUESTS = "all"
"""The only type of a service that declares no types."""


@dataclass(frozen=True, slots=True)
class TypedDemand:
    """One workload type of one model. req_per_s: the demand of the type (or the requests of a
    batch).

    combos: by id, the combos that serve the type within the SLO, each with its rate if it serves
    only this type.
    """

    model: str
    type: WorkloadType
    req_per_s: float
    combos: Mapping[str, Combo]

    @property
    def name(self) -> str:
        """Model and type as text for people."""
        return self.model if self.type.name == ALL_REQUESTS else f"{self.model}/{self.type.name}"


def types_of(service: Service) -> tuple[WorkloadType, ...]:
    """The declared types, or one type for all requests."""
    return service.types or (WorkloadType(ALL_REQUESTS, 1.0, service.lengths),)


def typed_candidates(
    cluster: Cluster, service: Service, profile: Profile, keep: int
) -> tuple[Combo, ...]:
    """Candidate combos of any type. keep: number of combos to keep per region, set of markets and
    type."""
    found: dict[str, Combo] = {}
    for kind in types_of(service):
        for combo in candidate_combos(cluster, service, kind.lengths, profile, keep, Arrivals()):
            if combo.meets_slo:
                found.setdefault(combo.id, combo)
    return tuple(found[name] for name in sorted(found))


def typed_demands(
    cluster: Cluster, service: Service, demand: Demand, combos: Iterable[str], profile: Profile
) -> tuple[TypedDemand, ...]:
    """The demand of each type, with the combos that serve the type within the SLO. combos: ids to
    evaluate. Types without demand are omitted."""
    shares = dict(demand.mix)
    names = tuple(dict.fromkeys(combos))
    found = []
    for kind in types_of(service):
        rate = demand.req_per_s * shares.get(kind.name, 0.0 if shares else kind.share)
        if rate <= 0.0:
            continue
        evaluated = (_for_type(i, cluster, service, kind, profile) for i in names)
        serving = {combo.id: combo for combo in evaluated if combo and combo.meets_slo}
        found.append(TypedDemand(service.model, kind, rate, serving))
    return tuple(found)


def _for_type(
    combo_id: str, cluster: Cluster, service: Service, kind: WorkloadType, profile: Profile
) -> Combo | None:
    """The combo at the lengths of `kind`; None if it cannot hold even one request of the type."""
    try:
        return evaluate_combo(combo_id, cluster, service, kind.lengths, profile)
    except InvalidValue:
        return None
