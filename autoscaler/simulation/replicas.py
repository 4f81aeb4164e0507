"""A decider of equal replicas per model, as in every autoscaler that counts pods.

Converts a desired number to instances: owned nodes first, spot up to the service's share of the
replicas, on-demand for the others, and for spot replicas that are not offered. Once spot is offered
again, spot replicas take their place when they are ready. The newest replicas leave first. The rule
(`Scaler`) decides the number. Each model runs on one kind of instance, chosen by
`best_instance_kind`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from autoscaler.domain.cluster import Cluster, Market, Service
from autoscaler.domain.combo import Combo
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Lengths, Phase
from autoscaler.estimate.windows import NoData
from autoscaler.performance.profile_sources import cluster_profile
from autoscaler.planning.candidate_combos import evaluate_combo
from autoscaler.planning.combo_names import combo_id
from autoscaler.rollout.serving_group import ServingGroup
from autoscaler.simulation.baseline_fleet import BaselineFleet
from autoscaler.simulation.decider import DeciderInput, DeciderOutput
from autoscaler.simulation.fleet_options import InstanceKind, instance_kinds

_MARKETS = (Market.OWNED, Market.SPOT, Market.ON_DEMAND)


@dataclass(frozen=True, slots=True)
class Signals:
    """Input of a rule for one model.

    now_s: seconds since the controller's start. ready, desired: numbers of replicas. req_per_s:
    arrival rate of the last minute, None without reports. in_flight: requests at gateways and
    engines. waiting: the part of in_flight that is not in an engine.
    """

    now_s: int
    ready: int
    desired: int
    req_per_s: float | None
    in_flight: int
    waiting: int


@dataclass(frozen=True, slots=True)
class ReplicaCapacity:
    """Capacity of one replica, for rules.

    req_per_s: capacity within the SLO. concurrency: number of requests in the replica at that rate,
    by Little's law.
    """

    req_per_s: float
    concurrency: float


class CheckTimes:
    """Times of a periodic check: the first tick at or after each multiple of `period_s` seconds.
    Ticks need not fall on the multiples."""

    def __init__(self, period_s: int) -> None:
        self._period_s = period_s
        self._next_s = 0

    def is_due(self, now_s: int) -> bool:
        """Whether the check takes place at this tick. now_s: seconds since the start."""
        if now_s < self._next_s:
            return False
        self._next_s = (now_s // self._period_s + 1) * self._period_s
        return True


class Scaler(Protocol):
    """The rule of one model. Called once per second."""

    def desired_replicas(self, signals: Signals) -> int:
        """The desired number of replicas."""
        ...


class ReplicaFleet:
    """The decider. lengths, chosen, rules: by model; `chosen` is the instance kind. why: the reason
    in its decisions."""

    def __init__(
        self,
        cluster: Cluster,
        lengths: Mapping[str, Lengths],
        chosen: Mapping[str, InstanceKind],
        rules: Mapping[str, Scaler],
        why: str,
    ) -> None:
        self._fleet = BaselineFleet(cluster, lengths)
        self._kinds = chosen
        self._rules = rules
        self._why = why
        self._started_ms: int | None = None
        self._by_model = {
            service.model: {
                pool.id: combo_in_pool(cluster, service, lengths, chosen[service.model], pool.id)
                for pool in chosen[service.model].pools
            }
            for service in cluster.services
        }

    def decide(self, inputs: DeciderInput, now_ms: int) -> DeciderOutput:
        """The output of one tick. now_ms: domain time in ms."""
        fleet = self._fleet
        if self._started_ms is None:
            self._started_ms = now_ms
        fleet.observe(inputs, now_ms)
        for service in inputs.cluster.services:
            groups = fleet.active_groups(service.model)
            signals = self._signals(inputs, service.model, groups, now_ms)
            wanted = self._rules[service.model].desired_replicas(signals)
            most = self._kinds[service.model].max_count()
            if service.max_instances:
                most = min(most, service.max_instances)
            wanted = min(most, max(wanted, service.min_instances, 1))
            self._scale(inputs, service, groups, wanted, now_ms)
        return fleet.output(inputs.cluster, now_ms)

    def _signals(
        self, inputs: DeciderInput, model: str, groups: Sequence[ServingGroup], now_ms: int
    ) -> Signals:
        window = inputs.windows.stats(model, now_ms, 60)
        in_flight = sum(g.in_flight for g in inputs.windows.gateways(model, now_ms))
        return Signals(
            now_s=(now_ms - (self._started_ms or now_ms)) // 1000,
            ready=sum(self._fleet.is_ready(group) for group in groups),
            desired=len(groups),
            req_per_s=None if isinstance(window, NoData) else window.req_per_s,
            in_flight=in_flight,
            waiting=max(0, in_flight - self._fleet.requests_in_engines(inputs, model)),
        )

    def _scale(
        self,
        inputs: DeciderInput,
        service: Service,
        groups: Sequence[ServingGroup],
        wanted: int,
        now_ms: int,
    ) -> None:
        kind = self._kinds[service.model]
        change: Counter[str] = Counter()
        has = Counter(group.placed[0].pool for group in groups)
        offered = self._offered(kind, has, inputs.cluster)
        target = _count_by_pool(replace(kind, offered=offered), wanted, service.spot_share)
        if target == has:
            return
        combos = self._by_model[service.model]
        for pool, combo in combos.items():
            for _ in range(target.get(pool, 0) - has[pool]):
                if self._fleet.add(combo, inputs.cluster, inputs, now_ms):
                    change[combo.id] += 1
        starting = sum(
            not self._fleet.is_ready(group) and has[pool] <= target.get(pool, 0)
            for group in groups
            for pool in (group.placed[0].pool,)
        )
        # A replica on a fallback pool stays until its replacement is ready.
        may_leave = len(groups) - wanted - starting
        for group in groups[::-1]:
            pool = group.placed[0].pool
            if may_leave > 0 and has[pool] > target.get(pool, 0):
                self._fleet.drain(group, now_ms)
                change[combos[pool].id] -= 1
                has[pool] -= 1
                may_leave -= 1
        if change:
            self._fleet.record_decision(service.model, change, self._why, now_ms)

    def _offered(
        self, kind: InstanceKind, has: Mapping[str, int], cluster: Cluster
    ) -> dict[str, int]:
        """Most instances of `kind` by pool: the present ones and those on offered nodes."""
        nodes = self._fleet.offered_nodes(cluster)
        slots = {pool.id: pool.per_node // kind.gpus for pool in kind.pools if pool.id in nodes}
        return {pool: has.get(pool, 0) + nodes[pool] * each for pool, each in slots.items()}


def best_instance_kind(
    cluster: Cluster, service: Service, lengths: Lengths, mean_req_per_s: float, peak: float
) -> InstanceKind:
    """The cheapest instance kind for the mean rate, by the price of whole nodes at the spot share.

    Only kinds that meet the SLO and whose pools can hold the peak (requests/s) are compared. If
    there is no such kind, the result is the kind with the most capacity. Raises InvalidValue if no
    instance fits.
    """
    found = instance_kinds(cluster, service, lengths)
    if not found:
        raise InvalidValue(f"model {service.model}", "no instance fits", "a GPU that holds it")
    meeting_slo = [kind for kind in found if _meets_slo(cluster, service, lengths, kind)]
    sufficient = [kind for kind in meeting_slo if kind.max_count() * kind.req_per_s >= peak]
    if sufficient:
        return min(
            sufficient, key=lambda kind: (_usd_per_h(kind, service, mean_req_per_s), kind.name)
        )
    return max(
        meeting_slo or found, key=lambda kind: (kind.max_count() * kind.req_per_s, kind.name)
    )


def combo_in_pool(
    cluster: Cluster,
    service: Service,
    lengths: Mapping[str, Lengths],
    kind: InstanceKind,
    pool: str,
) -> Combo:
    """One instance of `kind` in `pool`."""
    name = combo_id(service.model, [(Phase.AGGREGATED, kind.gpus, pool, 1)])
    found = lengths.get(service.model, service.lengths)
    return evaluate_combo(name, cluster, service, found, cluster_profile(cluster))


def replica_capacity(combo: Combo, lengths: Lengths) -> ReplicaCapacity:
    """Capacity of an instance of `combo`."""
    held_s = (combo.ttft_ms + combo.tpot_ms * lengths.output_tokens) / 1000.0
    return ReplicaCapacity(combo.req_per_s, max(1.0, combo.req_per_s * held_s))


def _meets_slo(cluster: Cluster, service: Service, lengths: Lengths, kind: InstanceKind) -> bool:
    pool = kind.pools[0].id
    return combo_in_pool(cluster, service, {service.model: lengths}, kind, pool).meets_slo


def _usd_per_h(kind: InstanceKind, service: Service, req_per_s: float) -> tuple[float, float]:
    """Price of the nodes that hold `req_per_s` at the declared utilization, then the price per
    request, which decides between equal prices."""
    count = max(1, math.ceil(req_per_s / (service.utilization * kind.req_per_s) - 1e-9))
    pools = {pool.id: pool for pool in kind.pools}
    usd = 0.0
    for pool, many in _count_by_pool(
        kind, min(count, kind.max_count()), service.spot_share
    ).items():
        nodes = math.ceil(many * kind.gpus / pools[pool].per_node)
        usd += nodes * pools[pool].price_usd_per_h
    return usd, usd / (count * kind.req_per_s)


def _count_by_pool(kind: InstanceKind, count: int, spot_share: float) -> dict[str, int]:
    """Pool id -> number of replicas. If one market holds too few, the other market takes the
    remaining replicas."""
    owned = min(count, kind.max_count_in(Market.OWNED))
    rest = count - owned
    spot = min(int(rest * spot_share + 1e-9), kind.max_count_in(Market.SPOT))
    dear = min(rest - spot, kind.max_count_in(Market.ON_DEMAND))
    spot = min(rest - dear, kind.max_count_in(Market.SPOT))
    by_market = dict(zip(_MARKETS, (owned, spot, dear), strict=True))
    return kind.count_by_pool(by_market)
