"""The state of a run, folded from the records of its topics, for the live view and the summary.

Pure: records and the domain time are input, values are output.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass

from autoscaler.domain.cluster import Cluster, Market
from autoscaler.estimate.window_stats import NO_REQUESTS, EndedRequests
from autoscaler.rollout.supply import Supply, fold
from autoscaler.serving.billing import Bill
from autoscaler.tick.account import total
from streams.tools.up.event_log import Story, decided, losses
from streams.tools.up.observed_demand import DemandSeen
from streams.tools.up.placement_text import Placement, placements
from streams.tools.up.quality_view import ServiceRow, service_row
from streams.tools.up.recent_telemetry import Identities, RecentTelemetry
from streams.tools.up.run_story import spot_saving_usd
from streams.tools.up.traffic_report import WaysSeen
from topics.reason_codes import ReasonCode
from topics.records import (
    Assignment,
    Decision,
    InstanceState,
    PlanRecord,
    Routes,
    Status,
    Telemetry,
)
from topics.sketch import merge, quantile_ms
from topics.supply import Price

_RATE_WINDOW_S = 10
UNMET_STANDS_MS = 660_000
"""Time after which unserved demand counts as over, in ms.

While it lasts, the controller repeats it every ten minutes.
"""
_SLIVER = 0.03
_MOST_RECORDS = 500
"""Decisions and assignments that are remembered, so that a copy of one counts once."""
_OVER = (InstanceState.STOPPED, InstanceState.FAILED, InstanceState.ASLEEP)
_LIVE_STATES = tuple(state for state in InstanceState if state not in _OVER)


@dataclass(frozen=True, slots=True)
class ModelRow:
    """The row of one model in the view. None = no data, which is not zero."""

    model: str
    req_per_s: float | None
    capacity_req_per_s: float
    where: tuple[Placement, ...]
    ttft_p95_ms: float | None
    tpot_p95_ms: float | None
    ttft_limit_ms: float
    tpot_limit_ms: float
    attainment: float | None
    percentile: float
    usd_per_h: float

    @property
    def missed(self) -> bool:
        """Whether the SLO attainment of the local window, for TTFT and TPOT together, is below the
        declared attainment."""
        return self.attainment is not None and self.attainment < self.percentile


@dataclass(frozen=True, slots=True)
class FleetProgress:
    """Progress of the start of the planned instances of some models.

    settled: models with every planned instance ready and routed. started: models with at least one
    ready instance and a route. nothing: models without any planned instance.
    """

    ready: int
    wanted: int
    settled: frozenset[str]
    started: frozenset[str]
    nothing: frozenset[str]


class Picture:
    """The state of the run that results from all records so far, as the view and the summary need
    it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._pools = {pool.id: pool for pool in cluster.pools}
        self.story = Story()
        self.demand = DemandSeen()
        self.ways = WaysSeen()
        self._first_launch_ms = 0
        names = [service.model for service in cluster.services]
        self._models = frozenset(names)
        names += [route.name for route in cluster.routes]
        self._telemetry = {name: RecentTelemetry() for name in names}
        self._prices = {pool.id: pool.price_usd_per_h for pool in cluster.pools}
        self._price_changes: dict[str, list[tuple[int, float]]] = {}
        self._supply = Supply()
        self._requests: dict[str, EndedRequests] = {}
        self.bill = Bill(self._prices, 0)
        self.statuses: dict[str, Status] = {}
        self._lost_ms: dict[str, int] = {}
        self.routes: dict[str, Routes] = {}
        self.decisions: deque[Decision] = deque(maxlen=_MOST_RECORDS)
        self.counts: Counter[str] = Counter()
        self.assigned_ms: deque[int] = deque(maxlen=_MOST_RECORDS)
        self.plan: PlanRecord | None = None
        self._desired: dict[str, Assignment] = {}
        self._assigned: Identities[tuple[str, int, int]] = Identities(_MOST_RECORDS)
        self._numbers: Identities[tuple[int, int]] = Identities(_MOST_RECORDS)

    def add(self, record: object) -> None:
        """Add one record. A copy of a known record changes nothing."""
        if isinstance(record, Telemetry):
            seen = self._telemetry.get(record.model)
            if seen is not None and seen.is_new(record):
                seen.spans.append(record)
                ended = record.completions + record.failures + record.refused
                before = self._requests.get(record.model, NO_REQUESTS)
                added = EndedRequests(ended, record.attained)
                self._requests[record.model] = total((before, added))
                if record.model in self._models:
                    self.demand.add(
                        record
                    )  # A service's requests are also in its models' telemetry.
                self.ways.add(record)
        elif isinstance(record, Status):
            latest = self.statuses.get(record.node)
            oldest_ms = latest.at_ms if latest else self._lost_ms.get(record.node, -1) + 1
            if record.at_ms >= oldest_ms:
                self.story.add(losses(latest, record))
                launched = [i.launched_ms for i in record.instances if i.launched_ms]
                if launched and not self._first_launch_ms:
                    self._first_launch_ms = min(launched)
                self.statuses[record.node] = record
                if record.pool in self._pools:
                    self.bill.record(record)
        elif isinstance(record, Routes):
            self.ways.plan(record)
            known = self.routes.get(record.model)
            order = (record.leader_token, record.generation)
            if known is None or order >= (known.leader_token, known.generation):
                self.routes[record.model] = record
        elif isinstance(record, Decision):
            if self._numbers.is_new((record.leader_token, record.number)):
                self.decisions.append(record)
                self.counts[record.kind] += 1
                self.story.add([decided(record, self._pools)])
        elif isinstance(record, Assignment):
            if self._assigned.is_new((record.node, record.leader_token, record.generation)):
                self.assigned_ms.append(record.issued_ms)
            last = self._desired.get(record.node)
            if last is None or _order(record) >= _order(last):
                self._desired[record.node] = record
        elif isinstance(record, PlanRecord) and _is_newer(record, self.plan):
            self.plan = record
        elif isinstance(record, Price):
            self._reprice(record)

    def mean_prices_usd_per_h(self, until_ms: int) -> dict[str, float]:
        """The mean price of each pool whose price changed, from the first launch to `until_ms`."""
        found = {}
        for pool, changes in self._price_changes.items():
            at_ms, usd, sum_usd_ms = self._first_launch_ms, self._pools[pool].price_usd_per_h, 0.0
            for changed_ms, changed_usd in (*changes, (until_ms, 0.0)):
                next_ms = min(max(changed_ms, at_ms), until_ms)
                sum_usd_ms += usd * (next_ms - at_ms)
                at_ms, usd = next_ms, changed_usd
            if until_ms > self._first_launch_ms:
                found[pool] = sum_usd_ms / (until_ms - self._first_launch_ms)
        return found

    def lose(self, node: str, at_ms: int) -> None:
        """Remove a node that disappeared, because it reports nothing more."""
        self._lost_ms[node] = at_ms
        self.statuses.pop(node, None)
        self.bill.lose(node)

    def _reprice(self, price: Price) -> None:
        """Apply `price` if the controller accepts it too."""
        self._supply = fold(self._supply, self._cluster, {price.pool: price}, {})
        good = self._supply.prices.get(price.pool)
        if good is not None and self._prices[price.pool] != good.usd_per_h:
            self._prices[price.pool] = good.usd_per_h
            changes = self._price_changes.setdefault(price.pool, [])
            changes.append((good.observed_ms, good.usd_per_h))
            self.bill.reprice(price.pool, good.usd_per_h, good.observed_ms / 1000.0)

    def progress(self, models: Iterable[str]) -> FleetProgress:
        """The start of the planned instances of `models`."""
        planned = {} if self.plan is None else _groups_planned(self.plan)
        states = {i.instance: i.state for s in self.statuses.values() for i in s.instances}
        ready = wanted = 0
        settled, started, nothing = set(), set(), set()
        for model in models:
            desired = [
                instance
                for assignment in self._desired.values()
                for instance in assignment.instances
                if instance.model == model and not instance.drain
            ]
            up = sum(states.get(one.instance) == InstanceState.READY for one in desired)
            ready, wanted = ready + up, wanted + len(desired)
            routed = len(self.routes[model].groups) if model in self.routes else 0
            groups = len({instance.group for instance in desired})
            if not desired:
                nothing.add(model)
            if up and routed:
                started.add(model)
            if up == len(desired) and min(groups, routed) >= planned.get(model, 0) > 0:
                settled.add(model)
        return FleetProgress(
            ready, wanted, frozenset(settled), frozenset(started), frozenset(nothing)
        )

    def unmet(self, now_ms: int) -> dict[str, str]:
        """Models whose demand or SLO cannot be met, with the controller's last reason.

        A model leaves the list after a later plan without a shortfall, or if its requests meet an
        SLO that was predicted to be missed. An entry expires if the controller does not repeat its
        reason.
        """
        last = {d.model: d for d in self.decisions if d.kind == "infeasible"}
        return {
            model: decision.reason
            for model, decision in last.items()
            if now_ms - decision.at_ms < UNMET_STANDS_MS
            and not self._served_since(decision)
            and not self._is_refuted(decision, now_ms)
        }

    def behind(self) -> str:
        """Text about a topic that the controller reads late; "" if there is none."""
        found = ""
        for decision in self.decisions:
            if ReasonCode.READER_BEHIND in decision.codes:
                found = decision.reason
            elif ReasonCode.READER_CAUGHT_UP in decision.codes:
                found = ""
        return found

    def _is_refuted(self, decision: Decision, now_ms: int) -> bool:
        """Whether requests meet the SLO that was predicted to be missed."""
        if ReasonCode.OUTSIDE_SLO not in decision.codes:
            return False
        row = self._row(decision.model, now_ms)
        return row.attainment is not None and not row.missed

    def _served_since(self, decision: Decision) -> bool:
        if self.plan is None or self.plan.at_ms <= decision.at_ms:
            return False
        service = next((s for s in self._cluster.services if s.model == decision.model), None)
        usable = decision.capacity_req_per_s * (service.utilization if service else 1.0)
        if usable >= decision.demand_req_per_s:
            return False  # The reason was the SLO, which plans do not report.
        missing = self.plan.shortfall_req_per_s.get(decision.model, 0.0)
        return missing <= _SLIVER * decision.demand_req_per_s

    def rows(self, now_ms: int) -> list[ModelRow]:
        """One row per declared model, in the order of the configuration."""
        return [self._row(service.model, now_ms) for service in self._cluster.services]

    def services(self, now_ms: int) -> list[ServiceRow]:
        """One row per service that routes over several models."""
        found = []
        for route in self._cluster.routes:
            shown, recent = self._lately(route.name, now_ms)
            found.append(service_row(route, self.routes.get(route.name), shown, recent))
        return found

    def requests(self, name: str) -> EndedRequests:
        """The ended requests of a model, or of a service that routes to several models."""
        return self._requests.get(name, NO_REQUESTS)

    @property
    def all_requests(self) -> EndedRequests:
        """The ended requests of all models. Those of a service are requests of its models."""
        return total(self.requests(model) for model in self._models)

    def usd(self) -> float:
        """The cost in USD, of each node until its last status."""
        return self.bill.reported_usd()

    def gpu_hours(self) -> dict[str, float]:
        """GPU hours by GPU type, of each node until its last status. Whole nodes count, including
        those without a price."""
        found: dict[str, float] = {}
        for span in self.bill.reported():
            pool = self._pools[span.pool]
            found[pool.gpu.name] = found.get(pool.gpu.name, 0.0) + span.hours * pool.per_node
        return found

    def spot_saving_usd(self) -> float:
        """How much less spot nodes cost than on-demand nodes of the same kind, in USD."""
        return spot_saving_usd(self.bill.reported(), self._cluster)

    @property
    def first_launch_ms(self) -> int:
        """Domain ms at which the first instance was launched; 0 if none was."""
        return self._first_launch_ms

    def usd_per_h(self) -> dict[Market, float]:
        """The cost of the nodes in use in USD/h, by market. Owned nodes cost nothing."""
        found = {Market.ON_DEMAND: 0.0, Market.SPOT: 0.0}
        for status in self._in_use():
            pool = self._pools.get(status.pool)
            if pool is not None and pool.market in found:
                found[pool.market] += self._prices[pool.id]
        return found

    def endpoints(self) -> list[str]:
        """Addresses of all engines that serve."""
        return [
            instance.endpoint
            for status in self.statuses.values()
            for instance in status.instances
            if instance.endpoint and instance.state in (InstanceState.READY, InstanceState.DRAINING)
        ]

    def reactions_s(self) -> list[float]:
        """Reaction time of each scale-out in domain seconds.

        From the first second over the threshold to the first assignment at or after the decision.
        """
        found = []
        issued = sorted(self.assigned_ms)
        for decision in self.decisions:
            if decision.kind == "scale_out" and decision.over_since_ms:
                after = next((at for at in issued if at >= decision.at_ms), None)
                if after is not None:
                    found.append(max(0, after - decision.over_since_ms) / 1000.0)
        return found

    def _in_use(self) -> Iterable[Status]:
        return (status for status in self.statuses.values() if _live(status))

    def _lately(self, name: str, now_ms: int) -> tuple[list[Telemetry], list[Telemetry]]:
        """The recent telemetry for rates, and that of the local window for latencies and SLO."""
        spans, local_ms = self._telemetry[name].spans, self._cluster.policy.local_window_s * 1000
        recent = [t for t in spans if t.end_ms > now_ms - local_ms]
        return [t for t in recent if t.end_ms > now_ms - _RATE_WINDOW_S * 1000], recent

    def _row(self, model: str, now_ms: int) -> ModelRow:
        shown, recent = self._lately(model, now_ms)
        covered_s = sum(t.span_ms for t in shown) / 1000.0
        ended = sum(t.completions + t.failures + t.refused for t in recent)
        service = self._cluster.service(model)
        routes = self.routes.get(model)
        usd = 0.0
        for status in self._in_use():
            live = [i for i in status.instances if i.state in _LIVE_STATES]
            gpus = sum(len(i.gpus) for i in live)
            mine = [i for i in live if i.model == model]
            price = self._prices.get(status.pool, 0.0)
            usd += price * sum(len(i.gpus) for i in mine) / gpus
        return ModelRow(
            model=model,
            req_per_s=sum(t.arrivals for t in shown) / covered_s if covered_s else None,
            capacity_req_per_s=sum(g.weight for g in routes.groups) if routes else 0.0,
            where=placements(self.statuses.values(), self._pools, model),
            ttft_p95_ms=quantile_ms(merge(t.ttft_ms for t in recent), 0.95),
            tpot_p95_ms=quantile_ms(merge(t.tpot_ms for t in recent), 0.95),
            ttft_limit_ms=service.slo.ttft_ms,
            tpot_limit_ms=service.slo.tpot_ms,
            attainment=sum(t.attained for t in recent) / ended if ended else None,
            percentile=service.percentile,
            usd_per_h=usd,
        )


def _order(record: Assignment) -> tuple[int, int]:
    return record.leader_token, record.generation


def _is_newer(record: PlanRecord, than: PlanRecord | None) -> bool:
    if than is None:
        return True
    return (record.leader_token, record.number) >= (than.leader_token, than.number)


def _groups_planned(plan: PlanRecord) -> dict[str, int]:
    found: dict[str, int] = {}
    for target in plan.targets:
        found[target.model] = found.get(target.model, 0) + target.count
    return found


def _live(status: Status) -> bool:
    return any(instance.state in _LIVE_STATES for instance in status.instances)
