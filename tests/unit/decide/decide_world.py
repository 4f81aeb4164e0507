"""A simulated fleet around the real `decide`: gateways, executors and a record of the effects.

Time is virtual: a tick is a function call. Attributes of the world switch faults on.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise

from autoscaler.decide import ControllerState, Effect, Observation, decide, restore
from autoscaler.domain.cluster import Cluster, Policy, Pool, Service
from autoscaler.domain.reason import Reason
from autoscaler.estimate.model_demand import observe_demand
from autoscaler.estimate.windows import TelemetryWindows
from autoscaler.planning.planner_messages import PlanRequest, Urgency
from autoscaler.state.effects import (
    DeleteKey,
    PublishAssignment,
    PublishDecision,
    PublishLedger,
    PublishPlan,
    PublishRoutes,
    SolveRequested,
)
from tests.unit.decide.decide_catalogue import BUCKET, Catalogue, Planner, pool, service, simple
from tests.unit.decide.decide_executors import observed
from tests.unit.decide.decide_versions import EngineTraits, sent_by_version
from topics.alerts import Alert
from topics.controls import Control
from topics.decisions import Decision, PlanRecord
from topics.engine_start import EngineStart
from topics.fleet import Assignment, InstanceState, Status
from topics.ledger import LedgerEntry
from topics.routing import Routes
from topics.sketch import bucket_of
from topics.supply import Availability, Price
from topics.telemetry import Telemetry

T0 = 1_700_000_000_000
QUIET_S = 10
"""Seconds without an effect after which a world ticks less often."""
STRIDE_S = 10
"""Seconds between the ticks of a quiet world."""
JUMP = 0.1
"""Relative change of a rate within a second near which a world ticks every second."""


@dataclass
class World:
    """One controller, its gateways and executors.

    rate(model, t_s) -> arrivals/s. step_s: seconds between ticks while something happens. poisson:
    arrivals with seeded noise; otherwise exact counts. Switches: silent gateways, zero models (the
    gateways' reports alone, if the engines are busy), slow
    (TTFT in ms), missing (share of requests that miss the SLO), failing pools, nodes, instances and
    engines, full pools (no launch finds room), stuck pools and engines (no instance becomes ready),
    crashing engines (they restart every 30 s), stubborn instances (they roll role switches back),
    cut pools and nodes (no status), reclaimed nodes (with the time of their end, in ms), longer
    (factor on the declared input tokens), unmanaged (number of servers that Shoal did not start, or
    numbers by combo), lag_s (by topic, how far the controller is behind), launch_basis (of all
    nodes), templates (digest of the executors' template by pool), engines (traits of compared
    versions, by engine), counts (whether executors report finished requests)."""

    cluster: Cluster
    catalogue: Catalogue
    rate: Callable[[str, int], float]
    start_s: int = 60
    drain_s: int = 5
    seed: int | None = None
    gateways: tuple[str, ...] = ("g1",)
    answers: bool = True
    full_s: int = 1
    step_s: int = 2
    copies: int = 1
    launch_basis: str = ""
    counts: bool = False
    confirm: bool = True
    unmanaged: dict[str, int | dict[str, int]] = field(default_factory=dict)
    lag_s: dict[str, int] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    zero: set[str] = field(default_factory=set)
    ttft_ms: dict[str, float] = field(default_factory=dict)
    in_flight: dict[str, int] = field(default_factory=dict)
    missing: dict[str, float] = field(default_factory=dict)
    longer: dict[str, float] = field(default_factory=dict)
    failing: set[str] = field(default_factory=set)
    full: set[str] = field(default_factory=set)
    stuck: set[str] = field(default_factory=set)
    stubborn: set[str] = field(default_factory=set)
    crashing: set[str] = field(default_factory=set)
    cut: set[str] = field(default_factory=set)
    busy: set[str] = field(default_factory=set)
    starts: dict[str, EngineStart] = field(default_factory=dict)
    templates: dict[str, str] = field(default_factory=dict)
    engines: dict[str, EngineTraits] = field(default_factory=dict)
    reclaimed: dict[str, int] = field(default_factory=dict)
    prices: dict[str, Price] = field(default_factory=dict)
    availability: dict[str, Availability] = field(default_factory=dict)
    alerts: list[Alert] = field(default_factory=list)
    controls: dict[str, Control] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.t_s = 0
        self.quiet_s = 0
        self.windows = TelemetryWindows(1800)
        self.rng = random.Random(self.seed)
        self.launched: dict[str, int] = {}
        self.launched_from: dict[str, str] = {}
        self.finished: Counter[str] = Counter()
        self.draining: dict[str, int] = {}
        self.phases: dict[str, str] = {}
        self.applied: dict[str, Assignment] = {}
        self.routes: dict[str, Routes] = {}
        self.statuses: dict[str, Status] = {}
        self.decisions: list[Decision] = []
        self.plans: list[PlanRecord] = []
        self.ledger: dict[str, LedgerEntry] = {}
        self.effects: list[Effect] = []
        self.planner = Planner(self.catalogue)
        self.due: list[tuple[int, PlanRequest]] = []
        self.reasons: dict[int, tuple[Reason, ...]] = {}
        self.sequence = 0
        self.carry: dict[str, float] = {}
        self.state: ControllerState = restore(self.cluster, {}, {}, {}, [], T0, leader_token=1)

    @property
    def now_ms(self) -> int:
        return T0 + self.t_s * 1000

    def run(self, seconds: int, each: Callable[[World], None] | None = None) -> World:
        """Tick for `seconds`, and call `each` after every tick. Ticks are `step_s` apart while
        something happens: within `QUIET_S` of the start or an effect, near a step of the rate,
        while a plan is due, while nodes have faults, and while instances start or drain."""
        end_s = self.t_s + seconds
        self.quiet_s = 0
        while self.t_s < end_s:
            self.tick(min(self._stride_s(), end_s - self.t_s))
            if each is not None:
                each(self)
        return self

    def _stride_s(self) -> int:
        """Seconds until the next tick."""
        if self.quiet_s < QUIET_S or self.due or self.busy or self.cut:
            return self.step_s
        steady = (InstanceState.READY, InstanceState.FAILED)
        instances = (i for status in self.statuses.values() for i in status.instances)
        if any(i.state not in steady for i in instances):
            return self.step_s
        span = range(self.t_s - STRIDE_S, self.t_s + STRIDE_S + 1)
        rates = [[self.rate(s.model, t_s) for t_s in span] for s in self.cluster.services]
        if any(abs(b - a) > JUMP * max(a, b) for row in rates for a, b in pairwise(row)):
            return self.step_s
        return STRIDE_S

    def tick(self, seconds: int = 1) -> tuple[Effect, ...]:
        """One tick, `seconds` after the one before."""
        before_s, self.t_s = self.t_s, self.t_s + seconds
        self._gateways(before_s)
        self._executors()
        models = [s.model for s in self.cluster.services]
        ready = [request for at_s, request in self.due if at_s <= self.t_s]
        self.due = [(at_s, request) for at_s, request in self.due if at_s > self.t_s]
        seen = Observation(
            observe_demand(self.windows, models, self.cluster.policy, self.now_ms),
            dict(self.statuses),
            availability=dict(self.availability),
            prices=dict(self.prices),
            answers=tuple(self.planner.answer(request, self.cluster) for request in ready),
            alerts=tuple(self.alerts),
            controls=dict(self.controls),
            unmanaged=self.unmanaged_servers(),
            lag_ms={topic: seconds * 1000 for topic, seconds in self.lag_s.items()},
        )
        self.alerts.clear()
        self.state, effects = decide(self.state, seen, self.cluster, self.now_ms)
        acted = any(not isinstance(effect, PublishLedger) for effect in effects)
        self.quiet_s = 0 if acted else self.quiet_s + seconds
        self._carry_out(effects)
        return effects

    def unmanaged_servers(self) -> dict[str, dict[str, int]]:
        """Number of servers that Shoal did not start, by model and combo."""
        return {
            model: seen if isinstance(seen, dict) else {self.cluster.service(model).unmanaged: seen}
            for model, seen in self.unmanaged.items()
        }

    def restart_controller(self, lost: bool = False) -> None:
        """The controller dies and restarts: windows are replayed, pending requests are lost. lost:
        whether the topics were lost too, so that it reads statuses alone."""
        self.state = restore(
            self.cluster,
            {} if lost else dict(self.applied),
            {} if lost else dict(self.routes),
            dict(self.statuses),
            [] if lost else list(self.decisions),
            self.now_ms,
            leader_token=self.state.term.leader_token + 1,
            next_serial=1 if lost else max((plan.next_serial for plan in self.plans), default=1),
            ledger=[] if lost else list(self.ledger.values()),
        )
        self.due.clear()

    def say(self, scope: str, kind: str, active: bool = True, **more: int) -> None:
        """An operator sets or ends a control and gives a reason."""
        said = Control(scope, kind, active, "ann", "incident 7", self.now_ms, **more)
        self.controls[said.key] = said

    def undeclare(self, model: str) -> None:
        """Remove `model` from the declaration."""
        left = tuple(s for s in self.cluster.services if s.model != model)
        self.cluster = replace(self.cluster, services=left)

    def kinds(self, model: str | None = None) -> list[str]:
        return [d.kind for d in self.decisions if model is None or d.model == model]

    def of_kind(self, kind: str) -> list[Decision]:
        return [d for d in self.decisions if d.kind == kind]

    def ready(self, model: str) -> int:
        """Instances of `model` that are ready and have a route."""
        routes = self.routes.get(model)
        if routes is None:
            return 0
        return sum(len(g.aggregated) + len(g.prefill) + len(g.decode) for g in routes.groups)

    def routed_req_per_s(self, model: str) -> float:
        routes = self.routes.get(model)
        return sum(group.weight for group in routes.groups) if routes else 0.0

    def assigned_count(self, model: str) -> int:
        """Instances of `model` that the assignments contain and that do not drain."""
        return sum(
            1
            for a in self.applied.values()
            for i in a.instances
            if i.model == model and not i.drain
        )

    def requests(self, urgency: Urgency | None = None) -> list[PlanRequest]:
        """All requests of `urgency` to the planner, including unanswered ones."""
        found = [e.request for e in self.effects if isinstance(e, SolveRequested)]
        return [r for r in found if urgency is None or r.urgency is urgency]

    def runs(self, instance: str) -> bool:
        """Whether the executor reports the instance as serving or draining."""
        return any(
            i.instance == instance and i.state in (InstanceState.READY, InstanceState.DRAINING)
            for status in self.statuses.values()
            for i in status.instances
        )

    def rented(self, pool_id: str) -> set[str]:
        """Nodes of a pool with at least one assigned instance."""
        return {n for n, a in self.applied.items() if a.pool == pool_id and a.instances}

    def _arrivals(self, model: str, second: int) -> int:
        if model in self.zero and model not in self.busy:
            return 0
        rate = self.rate(model, second)
        if self.seed is not None:
            return _poisson(self.rng, rate)
        exact = self.carry.get(model, 0.0) + rate
        self.carry[model] = exact - math.floor(exact + 1e-9)
        return math.floor(exact + 1e-9)

    def _gateways(self, before_s: int) -> None:
        self.sequence += 1
        seconds = range(before_s + 1, self.t_s + 1)
        for s in self.cluster.services:
            arrived = sum(self._arrivals(s.model, second) for second in seconds)
            if self.counts:
                self._finish(s.model, arrived)
            for k, gateway in enumerate(self.gateways):
                told = 0 if s.model in self.zero else arrived
                part = told * (k + 1) // len(self.gateways) - told * k // len(self.gateways)
                if gateway in self.silent or s.model in self.silent:
                    continue
                routes = self.routes.get(s.model)
                missed = round(part * self.missing.get(s.model, 0.0))
                tokens = BUCKET.input_tokens * self.longer.get(s.model, 1.0)
                ttft = bucket_of(self.ttft_ms.get(s.model, 300.0))
                record = Telemetry(
                    model=s.model,
                    gateway=gateway,
                    boot="b",
                    sequence=self.sequence,
                    end_ms=self.now_ms,
                    span_ms=1000 * len(seconds),
                    age_ms=0,
                    arrivals=part,
                    completions=part,
                    failures=0,
                    refused=0,
                    attained=part - missed,
                    input_tokens_arrived=int(part * tokens),
                    input_tokens=int(part * tokens),
                    output_tokens=int(part * BUCKET.output_tokens),
                    in_flight=self.in_flight.get(s.model, 0),
                    route_generation=routes.generation if routes and self.confirm else 0,
                    sent=sent_by_version(self, routes, part) if routes else {},
                    ttft_ms={ttft: part} if part else {},
                    tpot_ms={bucket_of(20.0): part} if part else {},
                )
                for _ in range(self.copies):
                    self.windows.add(record, self.now_ms)

    def _finish(self, model: str, requests: int) -> None:
        """The ready instances of `model` finish `requests` at once, in equal parts."""
        seen = [i for status in self.statuses.values() for i in status.instances]
        ready = [i.instance for i in seen if (i.model, i.state) == (model, InstanceState.READY)]
        for at, name in enumerate(ready):
            self.finished[name] += requests * (at + 1) // len(ready) - requests * at // len(ready)

    def _executors(self) -> None:
        for node, assignment in self.applied.items():
            if node in self.cut or assignment.pool in self.cut:
                continue
            seen = [observed(self, i, assignment.pool, node) for i in assignment.instances]
            alive = {i.instance for i in assignment.instances}
            before = self.statuses.get(node)
            for i in before.instances if before else ():
                if i.instance not in alive:
                    self.launched.pop(i.instance, None)
            self.statuses[node] = Status(
                node,
                assignment.pool,
                "x",
                assignment.generation,
                self.now_ms,
                tuple(seen),
                reclaim_ms=self.reclaimed.get(node, 0),
                launch_basis=self.launch_basis,
                templates={
                    s.engine: self.templates[assignment.pool]
                    for s in self.cluster.services
                    if assignment.pool in self.templates
                },
            )

    def _carry_out(self, effects: tuple[Effect, ...]) -> None:
        self.effects += effects
        for effect in effects:
            if isinstance(effect, PublishAssignment):
                self.applied[effect.record.node] = effect.record
            elif isinstance(effect, PublishRoutes):
                self.routes[effect.record.model] = effect.record
            elif isinstance(effect, DeleteKey):
                topic, key = effect.place
                del {"routes": self.routes, "assignments": self.applied}[topic][key]  # type: ignore[attr-defined]
            elif isinstance(effect, PublishDecision):
                self.decisions.append(effect.record)
            elif isinstance(effect, PublishLedger):
                self.ledger[effect.record.key] = effect.record
            elif isinstance(effect, PublishPlan):
                self.plans.append(effect.record)
            elif isinstance(effect, SolveRequested) and self.answers:
                urgent = effect.request.urgency is Urgency.URGENT
                pending = self.state.pending[effect.request.urgency]
                self.reasons[effect.request.number] = pending.reasons
                self.due.append((self.t_s + (1 if urgent else self.full_s), effect.request))


def _poisson(rng: random.Random, mean: float) -> int:
    if mean <= 0:
        return 0
    limit, k, product = math.exp(-mean), 0, rng.random()
    while product > limit:
        k += 1
        product *= rng.random()
    return k


def reused(build: Callable[..., World]) -> Callable[..., World]:
    """`build`, which runs once for the same arguments. Each call returns a copy of its own."""
    kept = cache(build)
    return lambda *args, **kwargs: deepcopy(kept(*args, **kwargs))


def world(
    rate: Callable[[str, int], float] | float,
    *services: Service,
    pools: tuple[Pool, ...] = (),
    policy: Policy | None = None,
    catalogue: Catalogue | None = None,
    **switches: object,
) -> World:
    """A world. By default it has one pool and one kind of combo (10 requests/s on one GPU)."""
    where = pools or (pool(),)
    served = services or (service(),)
    made = catalogue or {s.model: simple(s.model, where[0]) for s in served}
    wanted = rate if callable(rate) else (lambda _model, _t: float(rate))
    cluster = Cluster(where, served, policy or Policy())
    return World(cluster, made, wanted, **switches)  # type: ignore[arg-type]
