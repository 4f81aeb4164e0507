"""The gateway of the rate simulator: sends the flow of each model through its instances, by the
routes, and reports telemetry."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.workload import Lengths, Phase
from autoscaler.serving.engine_setup import EngineSetup
from autoscaler.simulation.arrival_flow import ArrivalFlow
from autoscaler.simulation.component_stage import AnyEngine
from autoscaler.simulation.event_queue import EventQueue
from autoscaler.simulation.flow_engine import FlowEngine
from autoscaler.simulation.flow_meter import FlowMeter
from autoscaler.simulation.gateway_process import GatewayLimits
from autoscaler.simulation.instance_speed import InstanceSet, instance_speed
from autoscaler.simulation.rate_flow import Cohort, Flow
from autoscaler.simulation.timeline import FlowRow
from topics.routing import Endpoint, RouteGroup, Routes
from topics.telemetry_columns import TelemetryBatch, batch_from_rows

MANY_REQ_PER_S = 100.0
"""From this rate in requests/s on, requests are "many": the count of a minute varies by about a
percent. At lower rates, chance can change the fleet, and a decider with rare ticks would miss
that."""

_GroupKind = tuple[EngineSetup, EngineSetup | None, float, float, int]
"""The properties that groups of equal behaviour share. The first instances of a request are
aggregated or prefill instances. The fields are: setup of the first instances; setup of the decode
instances; number of decode instances, weight and slots, each per first instance."""


@dataclass(slots=True)
class _ServingInstances:
    """Running instances of a model.

    ends: the engines that end requests: all except prefill instances. kinds: by an identifying key,
    a kind of group and the number of its first (aggregated or prefill) instances.
    """

    engines: list[FlowEngine] = field(default_factory=list)
    ends: list[FlowEngine] = field(default_factory=list)
    kinds: dict[tuple[float, ...], tuple[_GroupKind, int]] = field(default_factory=dict)

    def add(self, group: RouteGroup, first: list[FlowEngine], decode: list[FlowEngine]) -> None:
        """Add a group. first: its running aggregated or prefill instances. decode: its running
        decode instances."""
        self.engines += first + decode
        self.ends += decode or first
        setup, behind = first[0].setup, decode[0].setup if decode else None
        # Groups of one kind form one instance set, because their instances have equal shares.
        slots = (group.aggregated or group.prefill)[0].slots
        shared = len(decode) / len(first), group.weight / len(first), slots
        key = id(setup), id(behind), *shared
        _, count = self.kinds.get(key, (None, 0))
        self.kinds[key] = (setup, behind, *shared), count + len(first)


class FlowGateway:
    """Sends the flows of all models through their instances, by the routes."""

    def __init__(
        self,
        cluster: Cluster,
        arrival_flows: Mapping[str, ArrivalFlow],
        events: EventQueue,
        engines: Mapping[str, AnyEngine],
        limits: GatewayLimits,
        lead_s: float,
        random: np.random.Generator,
    ) -> None:
        self.name = "gateway-0"
        self._random = random
        self._events = events
        self._engines = engines
        self._lead_s = lead_s
        self._arrival_flows = arrival_flows
        self._sequence = 0
        self._routes: dict[str, Routes] = {}
        self._meters = {service.model: FlowMeter() for service in cluster.services}
        self._flows = {
            service.model: Flow(
                service.slo,
                limits.hold_ms / 1e3,
                limits.queue_ms / 1e3,
                limits.max_waiting,
                random.spawn(1)[0],
            )
            for service in cluster.services
        }
        self._in_instances: dict[str, int] = {}  # requests at the end of the last span
        self._finished: dict[str, int] = {}
        self._serving: dict[str, _ServingInstances] = {}
        self._set_cache: dict[str, tuple[object, list[InstanceSet]]] = {}
        self.rows: list[FlowRow] = []

    @property
    def busy(self) -> bool:
        """Whether some requests have not ended yet."""
        return any(flow.cohorts for flow in self._flows.values())

    def is_steady(self, from_s: float, to_s: float) -> bool:
        """Whether the rates and lengths in the coming span [from_s, to_s) equal the recent ones,
        and no request waits."""
        since_s, until_s = from_s - self._lead_s, to_s - self._lead_s
        if not all(
            arrival_flow.has_same_lengths(since_s, until_s)
            for arrival_flow in self._arrival_flows.values()
        ):
            return False
        expected_requests = {
            m: arrival_flow.expected_requests(since_s, until_s)
            for m, arrival_flow in self._arrival_flows.items()
        }
        return all(
            flow.is_steady(expected_requests.get(m, 0.0), to_s - from_s)
            for m, flow in self._flows.items()
        )

    def has_few_requests(self, from_s: float, to_s: float) -> bool:
        """Whether a model has few requests in the coming span [from_s, to_s), so that chance
        matters."""
        since_s, until_s = from_s - self._lead_s, to_s - self._lead_s
        many = MANY_REQ_PER_S * (to_s - from_s)
        return any(
            0.0 < one.expected_requests(since_s, until_s) < many
            for one in self._arrival_flows.values()
        )

    def apply(self, routes: Routes) -> None:
        """Use `routes` from now on."""
        self._routes[routes.model] = routes

    def refresh_serving(self) -> None:
        """Look up the running instances of each model. Later requests go to these instances;
        requests in all other instances end."""
        before = self._serving
        self._serving = {model: self._serving_instances(model) for model in self._arrival_flows}
        for model, old in before.items():
            kept = {id(one) for one in self._serving[model].engines}
            end_ms = self._events.now_ms + 1000.0 * self._flows[model].stay_s
            for one in old.engines:
                if id(one) not in kept:
                    one.end_load(end_ms)

    def flow(self, from_s: float, to_s: float, open_: bool = True) -> None:
        """Simulate [from_s, to_s). open_: whether requests still arrive."""
        for model, flow in self._flows.items():
            arrival_flow, meter = self._arrival_flows.get(model), self._meters[model]
            if arrival_flow is None:
                continue
            since_s = from_s - self._lead_s
            batch = (
                arrival_flow.take(since_s, to_s - self._lead_s)
                if open_
                else arrival_flow.take(0.0, 0.0)
            )
            if batch.requests:
                meter.count_arrivals(batch)
            lengths = arrival_flow.lengths(since_s)
            instance_sets = self._instance_sets(model, lengths) if lengths else []
            for cohort in flow.advance(batch, from_s, to_s, instance_sets):
                meter.count_ended(cohort)
                self._row(model, cohort)
            self._in_instances[model] = flow.in_instances(to_s)
            meter.in_flight = flow.unsent + self._in_instances[model]

    def report(self, end_ms: int, span_ms: int) -> TelemetryBatch:
        """One record per model with known routes."""
        reports = []
        for model, routes in self._routes.items():
            self._sequence += 1
            reports.append(self._meters[model].report(self._sequence, span_ms, routes.generation))
        names = [(model, self.name, "simulated") for model in self._routes]
        return batch_from_rows(names, [row for row, _ in reports], [cells for _, cells in reports])

    def load(self) -> None:
        """Give each engine its number of requests, and of finished requests, at the end of the last
        span. Prefill instances count no finished requests."""
        for model, serving in self._serving.items():
            inside, before = self._in_instances.get(model, 0), self._finished.get(model, 0)
            for one, load in _evenly(serving.engines, inside):
                one.set_load(load)
            # The number inside is drawn, so the difference may fall by chance.
            self._finished[model] = max(before, self._flows[model].accepted - inside)
            for one, finished in _evenly(serving.ends, self._finished[model] - before):
                one.finished += finished

    def drop_unfinished(self) -> None:
        """Drop the requests that have not ended by the end of the scenario."""
        for model, flow in self._flows.items():
            for cohort in flow.cohorts:
                self._row(model, cohort)
            for cohorts in (flow.sent, flow.waiting, flow.late):
                cohorts.clear()

    def _row(self, model: str, cohort: Cohort) -> None:
        batch = cohort.batch
        tokens = batch.output_tokens * cohort.attained / max(1, batch.servable)
        self.rows.append(
            FlowRow(model, cohort.at_s, cohort.requests, cohort.served, cohort.attained, tokens)
        )

    def _serving_instances(self, model: str) -> _ServingInstances:
        routes = self._routes.get(model)
        serving = _ServingInstances()
        for group in routes.groups if routes else ():
            decode = self._running_engines(group.decode)
            whole, prefill = (
                self._running_engines(group.aggregated),
                self._running_engines(group.prefill),
            )
            if whole:
                serving.add(group, whole, [])
            elif prefill and decode:
                serving.add(group, prefill, decode)
        return serving

    def _running_engines(self, ends: Iterable[Endpoint]) -> list[FlowEngine]:
        engines = (self._engines.get(end.address) for end in ends)
        return [one for one in engines if isinstance(one, FlowEngine)]

    def _instance_sets(self, model: str, lengths: Lengths) -> list[InstanceSet]:
        kinds = self._serving[model].kinds
        key = [(kind, count) for kind, (_, count) in kinds.items()], lengths
        known = self._set_cache.get(model)
        if known is not None and known[0] == key:
            return known[1]
        count = sum(count for _, count in kinds.values())
        cv = max(0.05, 2.0 ** (-0.5 * round(math.log2(max(1, count)))))
        made = []
        for (setup, behind, decodes, weight, slots), count in kinds.values():
            phase = Phase.PREFILL if behind else Phase.AGGREGATED
            each = instance_speed(
                (setup, phase), (behind, decodes) if behind else None, lengths, cv
            )
            made.append(InstanceSet(count * weight, count, each, slots, self._random))
        self._set_cache[model] = key, made
        return made


def _evenly(engines: list[FlowEngine], requests: int) -> Iterator[tuple[FlowEngine, int]]:
    """Each of `engines` with its part of `requests`."""
    each, more = divmod(requests, max(1, len(engines)))
    for index, one in enumerate(engines):
        yield one, each + (index < more)
