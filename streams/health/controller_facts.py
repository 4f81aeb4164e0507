"""Status of a controller and of its models, as answered by the HTTP endpoint.

Defines the JSON names of `/v1/status` and `/v1/explain/MODEL`, which are stable because other
programs read them. Stores the last ticks and computes answers on request.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from autoscaler.domain.cluster import Mode
from autoscaler.domain.quality_route import QualityRoute
from autoscaler.estimate.change_point import current_rate
from autoscaler.explain.reason_texts import text, texts
from autoscaler.planning.planner_messages import PlanRequest
from autoscaler.sizing.prediction_drift import drift_veto
from autoscaler.sizing.scale_in.conditions import excess_duration_s
from autoscaler.sizing.scale_in.reversals import scale_in_within_limit
from autoscaler.sizing.sizing_sum import sizing_sum
from autoscaler.state.effects import (
    PublishAssignment,
    PublishDecision,
    PublishRoutes,
    SolveRequested,
)
from autoscaler.state.operator_controls import FROZEN_KIND, LAG_KIND
from autoscaler.tick.account import Account
from autoscaler.tick.status import FleetStatus, ModelStatus, fleet_status
from streams.health.exposure import OpenPoint
from streams.health.launch_waits import node_faults, waiting_launches
from streams.health.multi_node_status import gang_facts
from streams.health.quality_status import service_facts
from streams.loop.tick_loop import Loop, TickResult
from streams.ports.merging import Merging
from topics.decisions import Decision
from topics.fleet import Status
from topics.reason_codes import ReasonCode
from topics.signing import Refusal

RELEASE = version("shoal")
_KEPT = 500
_SHORT = {ReasonCode.CAPACITY_SHORT, ReasonCode.FLOOR_SHORT}


@dataclass(frozen=True, slots=True)
class Identity:
    """Name and connection of this controller. broker: bootstrap servers; embedded: whether the
    broker is the embedded broker. records_signed: whether the controller accepts only signed
    records. open: interfaces without authentication.
    """

    controller: str
    broker: str
    prefix: str
    embedded: bool
    records_signed: bool = False
    open: tuple[OpenPoint, ...] = ()


@dataclass(slots=True)
class Facts:
    """Observes a loop through `tick`. leader: returns whether this controller leads now, the token
    of the highest claim, and the name of the claimant. refused: number of records without a valid
    signature, by topic and reason. log_status: fields of the decision log's status, empty without a
    log. account: cost and ended requests since the first tick. writes: number of assignments and
    routes, the only records through which a controller changes anything. merging: returns who
    merges the telemetry."""

    identity: Identity
    loop: Loop
    leader: Callable[[], tuple[bool, int, str]]
    refused: Callable[[], Mapping[tuple[str, Refusal], int]] = dict
    log_status: Callable[[], Mapping[str, Any]] = dict
    last: TickResult | None = None
    last_at_s: float = 0.0
    began_s: float = 0.0
    decisions: deque[Decision] = field(default_factory=lambda: deque(maxlen=_KEPT))
    kinds: Counter[str] = field(default_factory=Counter)
    account: Account = field(default_factory=Account)
    writes: int = 0
    merging: Callable[[], Merging] = Merging
    plans: deque[tuple[int, PlanRequest, tuple[str, ...]]] = field(
        default_factory=lambda: deque(maxlen=20)
    )
    asked: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    _cached: tuple[TickResult, FleetStatus] | None = None

    def __post_init__(self) -> None:
        self.began_s = self.loop.clock.now_s()

    def tick(self, done: TickResult) -> None:
        """Record one tick."""
        self.last, self.last_at_s = done, self.loop.clock.now_s()
        self.account.tick(done)
        for effect in done.effects:
            if isinstance(effect, PublishDecision):
                self.decisions.append(effect.record)
                self.kinds[effect.record.kind] += 1
            elif isinstance(effect, (PublishAssignment, PublishRoutes)):
                self.writes += 1
            elif isinstance(effect, SolveRequested):
                self._plan(effect.request, done)
                for model in effect.request.scope:
                    self.asked[model] = effect.request, done.cluster

    def _plan(self, request: PlanRequest, done: TickResult) -> None:
        pending = done.after.pending.get(request.urgency)
        reasons = texts(pending.reasons) if pending else ()
        self.plans.append((done.now_ms, request, reasons))

    def tick_age_s(self) -> float:
        """Real seconds since the last tick of this term. If there was no tick yet, real seconds
        since this controller began to lead, or since its start."""
        last_s = self.last_at_s if self.last else self.began_s
        return self.loop.clock.now_s() - max(last_s, self.loop.seated_s)

    def leading(self) -> TickResult | None:
        """The last tick of this term.

        None before the first tick, and on a standby, because another controller has continued since
        that tick.
        """
        leads, token, _ = self.leader()
        if self.last is None or not leads or self.last.after.term.leader_token != token:
            return None
        return self.last

    def standing(self) -> FleetStatus | None:
        """Status of the fleet after the last tick. None under the conditions of `leading`."""
        done = self.leading()
        if done is None:
            return None
        if self._cached is None or self._cached[0] is not done:
            made = fleet_status(done.after, done.observation, done.cluster, done.now_ms)
            self._cached = done, made
        return self._cached[1]

    def supply_age_s(self) -> dict[str, dict[str, float]]:
        """Age in seconds of the last price and availability observation, by kind and pool."""
        done = self.leading()
        if done is None:
            return {"prices": {}, "availability": {}}
        supply, now_ms = done.after.supply, done.now_ms
        return {
            kind: {pool: max(0, now_ms - one.observed_ms) / 1000.0 for pool, one in found.items()}
            for kind, found in (("prices", supply.prices), ("availability", supply.offers))
        }

    def status(self) -> dict[str, Any]:
        """The content of `shoal status`."""
        leads, token, leader = self.leader()
        now = self.standing()
        done = self.leading()
        merging = self.merging()
        found: dict[str, Any] = {
            "controller": self.identity.controller,
            "release": RELEASE,
            "other_releases": other_releases(done.observation.statuses) if done else {},
            "broker": self.identity.broker,
            "embedded_broker": self.identity.embedded,
            "prefix": self.identity.prefix,
            "records_signed": self.identity.records_signed,
            "records_refused": sum(self.refused().values()),
            "decision_log": self.log_status(),
            "open": [dataclasses.asdict(point) for point in self.identity.open],
            "leads": leads,
            "leader": leader,
            "leader_token": token,
            "now_ms": self.loop.clock.now_ms(),
            "tick_age_s": self.tick_age_s(),
            "ticks": self.loop.ticks.count,
            "writes": self.writes,
            "config": done.cluster.content_hash if done else "",
            "modes": sorted({str(s.mode) for s in done.cluster.services}) if done else [],
            "held": {name: text(why) for name, why in done.after.declared.controls.items()}
            if done
            else {},
            "lag_ms": dict(done.observation.lag_ms) if done else {},
            "telemetry_merged_by": str(merging.merger),
            "window_workers_late_s": merging.late_s,
            "refused": dict(self.loop.latest.declared.refused),
            "undeclared": dict(self.loop.latest.dropped.undeclared),
            "pools": [pool.id for pool in done.cluster.pools] if done else [],
            "supply_age_s": self.supply_age_s(),
            "usd_per_h": now.usd_per_h if now else None,
            "totals": dataclasses.asdict(self.account.totals()) if now else None,
            "verdict": now.verdict if now else {},
            "plans": [
                {
                    "number": request.number,
                    "urgency": str(request.urgency),
                    "at_ms": at_ms,
                    "scope": request.scope,
                    "reasons": reasons,
                }
                for at_ms, request, reasons in self.plans
            ],
            "models": [dataclasses.asdict(model) for model in now.models] if now else [],
            "failed_starts": self.failed_starts(now) if now else [],
            "last_decisions": self.last_decisions(now) if now else [],
            "waits": waiting_launches(done.observation.statuses) if done else [],
            "node_faults": node_faults(done.observation.statuses) if done else [],
            "gangs": gang_facts(done.after.groups, done.observation.statuses) if done else [],
            "services": [service_facts(route, done) for route in done.cluster.routes]
            if done
            else [],
        }
        return found

    def failed_starts(self, now: FleetStatus) -> list[dict[str, Any]]:
        """The last failed start of each model that has fewer ready combos than it needs."""
        last = {one.model: one for one in self.decisions if ReasonCode.BACKING_OFF in one.codes}
        return [
            {"model": one.model, "at_ms": last[one.model].at_ms, "reason": last[one.model].reason}
            for one in now.models
            if one.model in last and (one.ready < one.wanted or _SHORT & set(one.conditions))
        ]

    def last_decisions(self, now: FleetStatus) -> list[dict[str, Any]]:
        """The last decision of this controller on each model, except those to change nothing."""
        last = {one.model: one for one in self.decisions if one.kind not in ("hold", "rebuilt")}
        return [
            {
                "model": one.model,
                "number": one.number,
                "leader_token": one.leader_token,
                "at_ms": one.at_ms,
                "kind": one.kind,
                "cause": one.cause or next(iter(one.codes), ""),
                "reason": one.reason,
                "applied": one.applied,
            }
            for one in (last[model.model] for model in now.models if model.model in last)
        ]

    def explain(self, model: str) -> dict[str, Any] | None:
        """The content of `shoal explain` for `model`. None if the model is not declared, or on a
        standby.
        """
        done, now = self.leading(), self.standing()
        if done is not None:
            for route in done.cluster.routes:
                if route.name == model:
                    return self._explain_route(route, done)
        found = next((one for one in now.models if one.model == model), None) if now else None
        if done is None or found is None:
            return None
        request, cluster = self.asked.get(model, (None, None))
        return {
            "now_ms": done.now_ms,
            "standing": dataclasses.asdict(found),
            "decisions": [
                dataclasses.asdict(one) for one in self.decisions if one.model in (model, "*")
            ][-20:],
            "guards": guards_of(done, found),
            "present": _present(done, model),
            "sizing": _sizing(done, model),
            "request": request,
            "cluster": cluster,
        }

    def sizing(self, model: str) -> Mapping[str, Any] | None:
        """The way from the present rate of a declared model to its needed capacity. None if the
        model is not declared, or on a standby."""
        done = self.leading()
        return _sizing(done, model) if done is not None and model in done.after.models else None

    def _explain_route(self, route: QualityRoute, done: TickResult) -> dict[str, Any]:
        """Thresholds, shares and the binding constraint of a service that routes over several
        models."""
        return {
            "now_ms": done.now_ms,
            "route": service_facts(route, done),
            "decisions": [
                dataclasses.asdict(one) for one in self.decisions if one.model == route.name
            ][-20:],
            "present": _present(done, route.name),
        }


def guards_of(done: TickResult, found: ModelStatus) -> list[str]:
    """Active restrictions on changes to the model, as text."""
    state, now_ms = done.after, done.now_ms
    model = state.models[found.model]
    policy, service = done.cluster.policy, done.cluster.service(found.model)
    said = [found.held] if found.is_held else []
    behind = state.declared.controls.get(f"*/{LAG_KIND}")
    if behind is not None:
        said.append(text(behind))
    for key in (f"{found.model}/{FROZEN_KIND}", f"*/{FROZEN_KIND}", f"{found.model}/freeze"):
        freeze = state.declared.controls.get(key)
        if freeze is not None:
            said.append(text(freeze))
    if not scale_in_within_limit(model.hysteresis.reversals, now_ms, policy.reversals_per_h):
        said.append("scale-in paused: scaled out and in too often in two hours")
    if model.estimate.no_data:
        said.append("scale-in paused: no telemetry")
    planned = found.wanted_req_per_s * service.utilization * model.capacity.derate
    suspect = drift_veto(model, now_ms, found.demand_req_per_s or 0.0, planned)
    if suspect and service.mode is Mode.ACT:
        said.append(f"scale-in paused: for more than a day now, {', '.join(texts(suspect))}")
    if not said:
        minutes = excess_duration_s(service, policy) / 60.0
        said.append(
            f"scale-in after {minutes:.2g} min of excess; at most "
            f"{service.max_disruption:.0%} of the capacity is replaced at the same time"
        )
    return said


def _sizing(done: TickResult, model: str) -> Mapping[str, Any]:
    """The way from the present rate to the needed capacity."""
    present = _present(done, model)
    service, state = done.cluster.service(model), done.after.models[model]
    made = sizing_sum(service, state, present["req_per_s"] if present else None)
    return {
        "present_req_per_s": made.present_req_per_s,
        "headroom_req_per_s": made.headroom_req_per_s,
        "target_req_per_s": made.target_req_per_s,
        "code": str(made.cause.code) if made.cause else "",
        "cause": text(made.cause) if made.cause else "",
        "utilization": made.utilization,
        "derate": made.derate,
        "needed_req_per_s": made.needed_req_per_s,
    }


def other_releases(statuses: Mapping[str, Status]) -> dict[str, str]:
    """Executors of another version of Shoal than this process, by their newest status; "" is an
    unknown version."""
    newest = {
        one.executor: one.release for one in sorted(statuses.values(), key=lambda one: one.at_ms)
    }
    return {executor: release for executor, release in newest.items() if release != RELEASE}


def _present(done: TickResult, model: str) -> Mapping[str, float] | None:
    demand = done.observation.demand.get(model)
    if demand is None:
        return None
    rate = current_rate(demand, done.cluster.policy)
    if not rate.window_s:
        return None
    return {"req_per_s": rate.req_per_s, "low": rate.low, "high": rate.high, "s": rate.window_s}
