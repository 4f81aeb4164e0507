"""A fleet in virtual time around the real `decide`: gateways, executors and a record of effects.

Nothing sleeps; a tick is a function call. Faults are switches of the world.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from unittest import mock

from autoscaler.decide import ControllerState, Effect, Observation, decide, rebuild
from autoscaler.demand.observed import observe
from autoscaler.demand.windows import TelemetryWindows
from autoscaler.domain.checks import InvalidValue
from autoscaler.domain.cluster import Cluster, Market, Mode, Policy, Pool, Service
from autoscaler.domain.combo import Combo, ComboMember
from autoscaler.domain.workload import Lengths, Phase, Slo
from autoscaler.effects import (
    PublishAssignment,
    PublishDecision,
    PublishPlan,
    PublishRoutes,
    SolveRequested,
)
from autoscaler.performance import catalog
from autoscaler.performance.profile import plain_profile
from autoscaler.planning import answer as planner
from autoscaler.planning import problem as problems
from autoscaler.planning.combo_names import combo_id
from autoscaler.planning.request import PlanAnswer, PlanRequest, Urgency
from autoscaler.planning.strategies.shoal import Shoal
from topics.alerts import Alert
from topics.decisions import Decision, PlanRecord
from topics.fleet import Assignment, DesiredInstance, InstanceState, ObservedInstance, Status
from topics.routing import Routes
from topics.sketch import bucket_of
from topics.supply import Availability, Price
from topics.telemetry import Telemetry

T0 = 1_700_000_000_000
BUCKET = Lengths(1000.0, 200.0)
LLAMA = catalog.model("meta-llama/Llama-3.1-8B")
GPU = catalog.gpu("L40S")
AGGREGATED, PREFILL, DECODE = Phase.AGGREGATED, Phase.PREFILL, Phase.DECODE


def pool(
    name: str = "l40s",
    nodes: int = 8,
    per_node: int = 4,
    market: Market = Market.ON_DEMAND,
    region: str = "us",
    usd: float = 8.0,
) -> Pool:
    """A pool of L40S nodes."""
    price = 0.0 if market is Market.OWNED else usd
    return Pool(region, name, GPU, per_node, nodes, market, price)


def service(model: str = "chat", **changes: object) -> Service:
    """A service in mode act with quick scale-in."""
    settings: dict[str, object] = {
        "model": model,
        "architecture": LLAMA,
        "slo": Slo(1000.0, 50.0),
        "mode": Mode.ACT,
        "lengths": BUCKET,
        "min_instances": 1,
    }
    return Service(**{**settings, **changes})  # type: ignore[arg-type]


def combo(
    model: str, members: list[tuple[Phase, int, Pool, int, float]], start_s: float = 60.0
) -> Combo:
    """A combo of (phase, GPUs, pool, count, requests/s of one)."""
    rates: dict[Phase, float] = {}
    for phase, _, _, count, rate in members:
        rates[phase] = rates.get(phase, 0.0) + count * rate
    return Combo(
        id=combo_id(model, [(phase, gpus, p.id, count) for phase, gpus, p, count, _ in members]),
        model=model,
        region=members[0][2].region,
        members=tuple(
            ComboMember(phase, p.id, gpus, count, rate) for phase, gpus, p, count, rate in members
        ),
        req_per_s=min(rates.values()),
        usd_per_h=sum(
            count * gpus * p.price_usd_per_h / p.per_node for _, gpus, p, count, _ in members
        ),
        ttft_ms=300.0,
        tpot_ms=20.0,
        start_s=start_s,
    )


Catalogue = dict[str, tuple[Combo, ...]]
"""Per model, what the planner may choose from, with what one combo holds."""


def simple(model: str, where: Pool, rate: float = 10.0, start_s: float = 60.0) -> tuple[Combo, ...]:
    """One kind of combo: one GPU that holds `rate` requests/s."""
    return (combo(model, [(AGGREGATED, 1, where, 1, rate)], start_s),)


def combos(*made: Combo) -> tuple[Combo, ...]:
    """What the planner may choose from, for one model."""
    return made


class Planner:
    """The real planner over a given catalogue, in place of the performance model's combos.

    Prices are those of the cluster it is asked with. asked: every request, in order.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.asked: list[PlanRequest] = []

    def answer(self, request: PlanRequest, cluster: Cluster) -> PlanAnswer:
        self.asked.append(request)
        with (
            mock.patch.object(problems, "candidate_combos", self._candidates),
            mock.patch.object(problems, "combo_named", self._named),
            mock.patch.object(planner, "combo_named", self._named),
        ):
            return planner.answer(request, cluster, plain_profile(), Shoal())

    def _candidates(self, cluster: Cluster, service: Service, *_: object) -> tuple[Combo, ...]:
        return tuple(
            self._priced(combo, cluster)
            for combo in self.catalogue.get(service.model, ())
            if all(self._usable(m.pool, cluster, service) for m in combo.members)
        )

    def _named(self, name: str, cluster: Cluster, service: Service, *_: object) -> Combo:
        for known in self.catalogue.get(service.model, ()):
            if known.id == name:
                return self._priced(known, cluster)
        raise InvalidValue("combo", name, "a combo of the catalogue")

    @staticmethod
    def _usable(pool_id: str, cluster: Cluster, service: Service) -> bool:
        where = next((p for p in cluster.pools if p.id == pool_id), None)
        return where is not None and where.max_nodes > 0

    @staticmethod
    def _priced(known: Combo, cluster: Cluster) -> Combo:
        usd = sum(
            m.count * m.gpus * cluster.pool(m.pool).price_usd_per_h / cluster.pool(m.pool).per_node
            for m in known.members
        )
        return replace(known, usd_per_h=usd)


@dataclass
class World:
    """One controller, its gateways and executors, at 1 s per tick.

    rate(model, t_s) -> arrivals/s. poisson: seeded noise, else exact counts. Switches: silent
    gateways, zero models, slow (TTFT in ms), missing (share of requests that miss), dead pools
    (instances there fail), stuck pools (they never come up), cut pools and nodes (no status).
    Urgent requests are answered in the next tick, full ones after `full_s` seconds.
    """

    cluster: Cluster
    catalogue: Catalogue
    rate: Callable[[str, int], float]
    start_s: int = 60
    drain_s: int = 5
    seed: int | None = None
    gateways: tuple[str, ...] = ("g1",)
    answers: bool = True
    full_s: int = 1
    copies: int = 1
    confirm: bool = True
    silent: set[str] = field(default_factory=set)
    zero: set[str] = field(default_factory=set)
    ttft_ms: dict[str, float] = field(default_factory=dict)
    in_flight: dict[str, int] = field(default_factory=dict)
    missing: dict[str, float] = field(default_factory=dict)
    failing: set[str] = field(default_factory=set)
    stuck: set[str] = field(default_factory=set)
    cut: set[str] = field(default_factory=set)
    busy: set[str] = field(default_factory=set)
    prices: dict[str, Price] = field(default_factory=dict)
    availability: dict[str, Availability] = field(default_factory=dict)
    alerts: list[Alert] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.t_s = 0
        self.windows = TelemetryWindows(1800)
        self.rng = random.Random(self.seed)
        self.launched: dict[str, int] = {}
        self.draining: dict[str, int] = {}
        self.applied: dict[str, Assignment] = {}
        self.routes: dict[str, Routes] = {}
        self.statuses: dict[str, Status] = {}
        self.decisions: list[Decision] = []
        self.plans: list[PlanRecord] = []
        self.effects: list[Effect] = []
        self.planner = Planner(self.catalogue)
        self.due: list[tuple[int, PlanRequest]] = []
        self.sequence = 0
        self.carry: dict[str, float] = {}
        self.state: ControllerState = rebuild(self.cluster, {}, {}, {}, [], T0, leader_token=1)

    @property
    def now_ms(self) -> int:
        return T0 + self.t_s * 1000

    def run(self, seconds: int, each: Callable[[World], None] | None = None) -> World:
        for _ in range(seconds):
            self.tick()
            if each is not None:
                each(self)
        return self

    def tick(self) -> tuple[Effect, ...]:
        self.t_s += 1
        self._gateways()
        self._executors()
        models = [s.model for s in self.cluster.services]
        ready = [request for at_s, request in self.due if at_s <= self.t_s]
        self.due = [(at_s, request) for at_s, request in self.due if at_s > self.t_s]
        seen = Observation(
            observe(self.windows, models, self.cluster.policy, self.now_ms),
            dict(self.statuses),
            availability=dict(self.availability),
            prices=dict(self.prices),
            answers=tuple(self.planner.answer(request, self.cluster) for request in ready),
            alerts=tuple(self.alerts),
        )
        self.alerts.clear()
        self.state, effects = decide(self.state, seen, self.cluster, self.now_ms)
        self._carry_out(effects)
        return effects

    def restart_controller(self) -> None:
        """The controller dies and comes back; windows are replayed, tables built again."""
        self.state = rebuild(
            self.cluster,
            dict(self.applied),
            dict(self.routes),
            dict(self.statuses),
            list(self.decisions),
            self.now_ms,
            leader_token=self.state.leader_token + 1,
        )
        self.due.clear()

    def kinds(self, model: str | None = None) -> list[str]:
        return [d.kind for d in self.decisions if model is None or d.model == model]

    def of_kind(self, kind: str) -> list[Decision]:
        return [d for d in self.decisions if d.kind == kind]

    def ready(self, model: str) -> int:
        """Instances of `model` that serve and are routed."""
        routes = self.routes.get(model)
        if routes is None:
            return 0
        return sum(len(g.aggregated) + len(g.prefill) + len(g.decode) for g in routes.groups)

    def routed_req_per_s(self, model: str) -> float:
        routes = self.routes.get(model)
        return sum(group.weight for group in routes.groups) if routes else 0.0

    def wanted(self, model: str) -> int:
        """Instances of `model` that nodes should run and not drain."""
        return sum(
            1
            for a in self.applied.values()
            for i in a.instances
            if i.model == model and not i.drain
        )

    def _arrivals(self, model: str) -> int:
        if model in self.zero:
            return 0
        rate = self.rate(model, self.t_s)
        if self.seed is not None:
            return _poisson(self.rng, rate)
        exact = self.carry.get(model, 0.0) + rate
        self.carry[model] = exact - math.floor(exact + 1e-9)
        return math.floor(exact + 1e-9)

    def _gateways(self) -> None:
        self.sequence += 1
        for s in self.cluster.services:
            arrived = self._arrivals(s.model)
            for k, gateway in enumerate(self.gateways):
                part = arrived * (k + 1) // len(self.gateways) - arrived * k // len(self.gateways)
                if gateway in self.silent or s.model in self.silent:
                    continue
                routes = self.routes.get(s.model)
                missed = round(part * self.missing.get(s.model, 0.0))
                ttft = bucket_of(self.ttft_ms.get(s.model, 300.0))
                record = Telemetry(
                    model=s.model,
                    gateway=gateway,
                    boot="b",
                    sequence=self.sequence,
                    end_ms=self.now_ms,
                    span_ms=1000,
                    age_ms=0,
                    arrivals=part,
                    completions=part,
                    failures=0,
                    refused=0,
                    attained=part - missed,
                    input_tokens_arrived=int(part * BUCKET.input_tokens),
                    input_tokens=int(part * BUCKET.input_tokens),
                    output_tokens=int(part * BUCKET.output_tokens),
                    in_flight=self.in_flight.get(s.model, 0),
                    route_generation=routes.generation if routes and self.confirm else 0,
                    ttft_ms={ttft: part} if part else {},
                    tpot_ms={bucket_of(20.0): part} if part else {},
                )
                for _ in range(self.copies):
                    self.windows.add(record, self.now_ms)

    def _executors(self) -> None:
        for node, assignment in self.applied.items():
            if node in self.cut or assignment.pool in self.cut:
                continue
            seen = [self._instance(i, assignment.pool) for i in assignment.instances]
            alive = {i.instance for i in assignment.instances}
            for gone in [n for n in self.launched if n not in alive and self._is_on(n, node)]:
                del self.launched[gone]
            self.statuses[node] = Status(
                node,
                assignment.pool,
                "x",
                assignment.generation,
                self.now_ms,
                tuple(seen),
            )

    def _is_on(self, instance: str, node: str) -> bool:
        status = self.statuses.get(node)
        return status is not None and any(i.instance == instance for i in status.instances)

    def _instance(self, i: DesiredInstance, where: str) -> ObservedInstance:
        launched = self.launched.setdefault(i.instance, self.now_ms)
        ready_ms = launched + self.start_s * 1000
        state, since = InstanceState.STARTING, launched
        if i.drain:
            since = self.draining.setdefault(i.instance, self.now_ms)
            held = i.model in self.busy
            over = self.now_ms - since >= self.drain_s * 1000 and not held
            state = InstanceState.STOPPED if over else InstanceState.DRAINING
        elif where in self.failing and self.now_ms >= launched + 20_000:
            state = InstanceState.FAILED
        elif where not in self.stuck and self.now_ms >= ready_ms:
            state, since = InstanceState.READY, ready_ms
        listens = state in (InstanceState.READY, InstanceState.DRAINING)
        return ObservedInstance(
            i.instance,
            i.model,
            i.phase,
            i.group,
            state,
            i.gpus,
            endpoint="127.0.0.1:9000" if listens else "",
            since_ms=since,
            launched_ms=launched,
            in_flight=3 if i.model in self.busy else 0,
            reason="no CUDA device" if state is InstanceState.FAILED else "",
        )

    def _carry_out(self, effects: tuple[Effect, ...]) -> None:
        self.effects += effects
        for effect in effects:
            if isinstance(effect, PublishAssignment):
                self.applied[effect.record.node] = effect.record
            elif isinstance(effect, PublishRoutes):
                self.routes[effect.record.model] = effect.record
            elif isinstance(effect, PublishDecision):
                self.decisions.append(effect.record)
            elif isinstance(effect, PublishPlan):
                self.plans.append(effect.record)
            elif isinstance(effect, SolveRequested) and self.answers:
                urgent = effect.request.urgency is Urgency.URGENT
                self.due.append((self.t_s + (1 if urgent else self.full_s), effect.request))


def _poisson(rng: random.Random, mean: float) -> int:
    if mean <= 0:
        return 0
    limit, k, product = math.exp(-mean), 0, rng.random()
    while product > limit:
        k += 1
        product *= rng.random()
    return k


def world(
    rate: Callable[[str, int], float] | float,
    *services: Service,
    pools: tuple[Pool, ...] = (),
    policy: Policy | None = None,
    catalogue: Catalogue | None = None,
    **switches: object,
) -> World:
    """A world of one pool and one kind of combo (10 requests/s on one GPU), if not told more."""
    where = pools or (pool(),)
    served = services or (service(),)
    made = catalogue or {s.model: simple(s.model, where[0]) for s in served}
    wanted = rate if callable(rate) else (lambda _model, _t: float(rate))
    cluster = Cluster(where, served, policy or Policy())
    return World(cluster, made, wanted, **switches)  # type: ignore[arg-type]
