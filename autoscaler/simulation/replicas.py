"""A decider of equal replicas per model: the shape of every autoscaler that counts pods.

Owns turning a wanted number into instances: owned nodes first, spot up to the service's share of
the replicas, on-demand for the rest; the newest leave first. How many are wanted is the rule's
part (`Scaler`). Each model runs on one kind of instance, chosen by `best_kind`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from autoscaler.domain.cluster import Cluster, Market, Service
from autoscaler.domain.combo import Combo
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Lengths, Phase
from autoscaler.estimate.windows import NoData
from autoscaler.performance.profile_sources import profile_of
from autoscaler.planning.candidate_combos import combo_named
from autoscaler.planning.combo_names import combo_id
from autoscaler.rollout.serving_group import Group
from autoscaler.simulation.baseline_fleet import Crew
from autoscaler.simulation.decider import Said, Seen
from autoscaler.simulation.fleet_options import Kind, kinds

_MARKETS = (Market.OWNED, Market.SPOT, Market.ON_DEMAND)


@dataclass(frozen=True, slots=True)
class Signals:
    """What a rule sees of one model.

    now_s: seconds since the controller's start. ready, wanted: replicas. req_per_s: arrivals of
    the last minute, None where nothing was reported. arrivals: of the last second. in_flight: at
    gateways and engines together; waiting: those of them that no engine has.
    """

    now_s: int
    ready: int
    wanted: int
    req_per_s: float | None
    in_flight: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Replica:
    """What a rule may know of one replica. req_per_s: what it carries within the SLO; concurrency:
    requests that are in it then, by Little's law."""

    req_per_s: float
    concurrency: float


class Scaler(Protocol):
    """One model's rule. Called once per second."""

    def wanted(self, signals: Signals) -> int:
        """How many replicas there should be."""
        ...


class ReplicaFleet:
    """lengths, chosen, rules: per model. why: the reason that its decisions state."""

    def __init__(
        self,
        cluster: Cluster,
        lengths: Mapping[str, Lengths],
        chosen: Mapping[str, Kind],
        rules: Mapping[str, Scaler],
        why: str,
    ) -> None:
        self._crew = Crew(cluster, lengths)
        self._chosen = chosen
        self._rules = rules
        self._why = why
        self._started_ms: int | None = None
        self._by_model = {
            service.model: {
                pool.id: combo_of(cluster, service, lengths, chosen[service.model], pool.id)
                for pool in chosen[service.model].pools
            }
            for service in cluster.services
        }

    def decide(self, seen: Seen, now_ms: int) -> Said:
        """One tick."""
        crew = self._crew
        if self._started_ms is None:
            self._started_ms = now_ms
        crew.look(seen, now_ms)
        for service in seen.cluster.services:
            groups = crew.wanted(service.model)
            signals = self._signals(seen, service.model, groups, now_ms)
            wanted = self._rules[service.model].wanted(signals)
            most = self._chosen[service.model].most()
            if service.max_instances:
                most = min(most, service.max_instances)
            wanted = min(most, max(wanted, service.min_instances, 1))
            self._move(seen, service, groups, wanted, now_ms)
        return crew.said(seen.cluster, now_ms)

    def _signals(self, seen: Seen, model: str, groups: Sequence[Group], now_ms: int) -> Signals:
        window = seen.windows.stats(model, now_ms, 60)
        in_flight = sum(g.in_flight for g in seen.windows.gateways(model, now_ms))
        return Signals(
            now_s=(now_ms - (self._started_ms or now_ms)) // 1000,
            ready=sum(self._crew.is_ready(group) for group in groups),
            wanted=len(groups),
            req_per_s=None if isinstance(window, NoData) else window.req_per_s,
            in_flight=in_flight,
            waiting=max(0, in_flight - self._crew.instances_in_flight(seen, model)),
        )

    def _move(
        self, seen: Seen, service: Service, groups: Sequence[Group], wanted: int, now_ms: int
    ) -> None:
        if len(groups) == wanted:
            return
        kind = self._chosen[service.model]
        change: Counter[str] = Counter()
        has = Counter(group.placed[0].pool for group in groups)
        target = _split(kind, wanted, service.spot_share)
        for pool, combo in self._by_model[service.model].items():
            for _ in range(target.get(pool, 0) - has[pool]):
                if self._crew.add(combo, seen.cluster, seen, now_ms):
                    change[combo.id] += 1
            mine = [group for group in groups if group.placed[0].pool == pool]
            for group in mine[::-1][: max(0, has[pool] - target.get(pool, 0))]:
                self._crew.drain(group, now_ms)
                change[combo.id] -= 1
        if change:
            self._crew.note(service.model, change, self._why, now_ms)


def best_kind(
    cluster: Cluster, service: Service, lengths: Lengths, mean_req_per_s: float, peak: float
) -> Kind:
    """The kind of instance on which the mean rate costs least, whole nodes and the share of spot
    counted, of those that meet the SLO and whose pools can hold the peak (requests/s); where none
    does, the one that carries most."""
    found = kinds(cluster, service, lengths)
    if not found:
        raise InvalidValue(f"model {service.model}", "no instance fits", "a GPU that holds it")
    fit = [kind for kind in found if _meets_slo(cluster, service, lengths, kind)]
    held = [kind for kind in fit if kind.most() * kind.req_per_s >= peak]
    if held:
        return min(held, key=lambda kind: (_usd_per_h(kind, service, mean_req_per_s), kind.name))
    return max(fit or found, key=lambda kind: (kind.most() * kind.req_per_s, kind.name))


def combo_of(
    cluster: Cluster, service: Service, lengths: Mapping[str, Lengths], kind: Kind, pool: str
) -> Combo:
    """One instance of `kind` in `pool`."""
    name = combo_id(service.model, [(Phase.AGGREGATED, kind.gpus, pool, 1)])
    found = lengths.get(service.model, service.lengths)
    return combo_named(name, cluster, service, found, profile_of(cluster))


def replica_of(combo: Combo, lengths: Lengths) -> Replica:
    """What rules may know of an instance of `combo`."""
    held_s = (combo.ttft_ms + combo.tpot_ms * lengths.output_tokens) / 1000.0
    return Replica(combo.req_per_s, max(1.0, combo.req_per_s * held_s))


def _meets_slo(cluster: Cluster, service: Service, lengths: Lengths, kind: Kind) -> bool:
    pool = kind.pools[0].id
    return combo_of(cluster, service, {service.model: lengths}, kind, pool).meets_slo


def _usd_per_h(kind: Kind, service: Service, req_per_s: float) -> tuple[float, float]:
    """Price of the nodes that hold `req_per_s` at the declared utilization; ties go to the kind
    that is cheaper per request."""
    count = max(1, math.ceil(req_per_s / (service.utilization * kind.req_per_s) - 1e-9))
    pools = {pool.id: pool for pool in kind.pools}
    usd = 0.0
    for pool, many in _split(kind, min(count, kind.most()), service.spot_share).items():
        nodes = math.ceil(many * kind.gpus / pools[pool].per_node)
        usd += nodes * pools[pool].price_usd_per_h
    return usd, usd / (count * kind.req_per_s)


def _split(kind: Kind, count: int, spot_share: float) -> dict[str, int]:
    """Pool id -> replicas of `count`. What one market lacks, the other gets."""
    owned = min(count, kind.room(Market.OWNED))
    rest = count - owned
    spot = min(int(rest * spot_share + 1e-9), kind.room(Market.SPOT))
    dear = min(rest - spot, kind.room(Market.ON_DEMAND))
    spot = min(rest - dear, kind.room(Market.SPOT))
    by_market = dict(zip(_MARKETS, (owned, spot, dear), strict=True))
    return kind.split(by_market)
