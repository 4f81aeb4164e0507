"""What is going on, seen through the topics: the values behind the live view and the summary.

Owns folding records into one picture. Pure: records and the domain time come in, values go out;
it opens nothing and draws nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from autoscaler.domain.cluster import Cluster
from autoscaler.serving.billing import Bill, Meter, Tariff
from topics.records import Assignment, Decision, InstanceState, Routes, Status, Telemetry
from topics.sketch import merge, quantile_ms

SHOWN_WINDOW_S = 10
LATENCY_WINDOW_S = 60
_LIVE_STATES = (InstanceState.STARTING, InstanceState.READY, InstanceState.DRAINING)


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One model as the view shows it. None = no data (which is not zero)."""

    model: str
    req_per_s: float | None
    capacity_req_per_s: float
    instances: Mapping[str, Mapping[str, int]]
    ttft_p95_ms: float | None
    tpot_p95_ms: float | None
    ttft_limit_ms: float
    tpot_limit_ms: float
    attainment: float | None
    usd_per_h: float
    in_flight: int


@dataclass(slots=True)
class _Seen:
    """What one model's telemetry said lately, by (gateway, end of span)."""

    spans: deque[Telemetry] = field(default_factory=lambda: deque(maxlen=600))
    known: set[tuple[str, str, int]] = field(default_factory=set)


class Picture:
    """Everything that was said on the topics so far, as far as people want to see it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._telemetry = {service.model: _Seen() for service in cluster.services}
        self._meter = Meter(
            {
                pool.id: Tariff(pool.price_usd_per_h, pool.gpu.name, pool.per_node)
                for pool in cluster.pools
            }
        )
        self.statuses: dict[str, Status] = {}
        self.routes: dict[str, Routes] = {}
        self.decisions: list[Decision] = []
        self.assignments: list[tuple[int, str]] = []
        self._assigned: set[tuple[str, int, int]] = set()
        self._numbers: set[tuple[int, int]] = set()

    def add(self, record: object) -> None:
        """Take one record in; a copy of a known one changes nothing."""
        if isinstance(record, Telemetry):
            seen = self._telemetry.get(record.model)
            key = (record.gateway, record.boot, record.sequence)
            if seen is not None and key not in seen.known:
                seen.known.add(key)
                seen.spans.append(record)
        elif isinstance(record, Status):
            latest = self.statuses.get(record.node)
            if latest is None or record.at_ms >= latest.at_ms:
                self.statuses[record.node] = record
                self._meter.record(record)
        elif isinstance(record, Routes):
            known = self.routes.get(record.model)
            order = (record.leader_token, record.generation)
            if known is None or order >= (known.leader_token, known.generation):
                self.routes[record.model] = record
        elif isinstance(record, Decision):
            number = (record.leader_token, record.number)
            if number not in self._numbers:
                self._numbers.add(number)
                self.decisions.append(record)
        elif isinstance(record, Assignment):
            made = (record.node, record.leader_token, record.generation)
            if made not in self._assigned:
                self._assigned.add(made)
                self.assignments.append((record.issued_ms, record.node))

    def ready_models(self) -> set[str]:
        """Models that have at least one instance in their routes."""
        return {model for model, routes in self.routes.items() if routes.groups}

    def rows(self, now_ms: int) -> list[ModelRow]:
        """One row per declared model, in the order of the configuration."""
        return [self._row(service.model, now_ms) for service in self._cluster.services]

    def bill(self, now_ms: int) -> Bill:
        """What was spent until now."""
        return self._meter.bill(now_ms)

    def usd_per_h(self) -> float:
        """What the nodes in use cost now, without owned ones."""
        return sum(self._node_price(status) for status in self._in_use())

    def starting(self) -> int:
        """Instances that are starting now."""
        return sum(
            1
            for status in self.statuses.values()
            for instance in status.instances
            if instance.state == InstanceState.STARTING
        )

    def endpoints(self) -> list[str]:
        """Addresses of all engines that answer."""
        return [
            instance.endpoint
            for status in self.statuses.values()
            for instance in status.instances
            if instance.endpoint and instance.state in (InstanceState.READY, InstanceState.DRAINING)
        ]

    def reactions_s(self) -> list[float]:
        """Per scale-out: domain seconds from the first second over the threshold to its first
        assignment (the first one issued at or after the decision)."""
        found = []
        issued = sorted(at for at, _ in self.assignments)
        for decision in self.decisions:
            if decision.kind == "scale_out" and decision.over_since_ms:
                after = next((at for at in issued if at >= decision.at_ms), None)
                if after is not None:
                    found.append(max(0, after - decision.over_since_ms) / 1000.0)
        return found

    def _in_use(self) -> Iterable[Status]:
        return (status for status in self.statuses.values() if _live(status))

    def _node_price(self, status: Status) -> float:
        for pool in self._cluster.pools:
            if pool.id == status.pool:
                return pool.price_usd_per_h
        return 0.0

    def _row(self, model: str, now_ms: int) -> ModelRow:
        spans = self._telemetry[model].spans
        shown = [t for t in spans if t.end_ms > now_ms - SHOWN_WINDOW_S * 1000]
        recent = [t for t in spans if t.end_ms > now_ms - LATENCY_WINDOW_S * 1000]
        covered_s = sum(t.span_ms for t in shown) / 1000.0
        ended = sum(t.completions + t.failures + t.refused for t in recent)
        service = self._cluster.service(model)
        routes = self.routes.get(model)
        instances: dict[str, dict[str, int]] = {}
        usd = 0.0
        for status in self._in_use():
            live = [i for i in status.instances if i.state in _LIVE_STATES]
            gpus = sum(len(i.gpus) for i in live)
            mine = [i for i in live if i.model == model]
            usd += self._node_price(status) * sum(len(i.gpus) for i in mine) / gpus
            for instance in mine:
                by_state = instances.setdefault(instance.phase, {})
                by_state[str(instance.state)] = by_state.get(str(instance.state), 0) + 1
        return ModelRow(
            model=model,
            req_per_s=sum(t.arrivals for t in shown) / covered_s if covered_s else None,
            capacity_req_per_s=sum(g.weight for g in routes.groups) if routes else 0.0,
            instances=instances,
            ttft_p95_ms=quantile_ms(merge(t.ttft_ms for t in recent), 0.95),
            tpot_p95_ms=quantile_ms(merge(t.tpot_ms for t in recent), 0.95),
            ttft_limit_ms=service.slo.ttft_ms,
            tpot_limit_ms=service.slo.tpot_ms,
            attainment=sum(t.attained for t in recent) / ended if ended else None,
            usd_per_h=usd,
            in_flight=sum(t.in_flight for t in {t.gateway: t for t in shown}.values()),
        )


def _live(status: Status) -> bool:
    return any(instance.state in _LIVE_STATES for instance in status.instances)
