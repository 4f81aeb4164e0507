"""A console over a staged fleet of any size, served by a thread, for tests of the page."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace as Bag
from typing import Any

from autoscaler.domain.cluster import Cluster, Market, Pool, Service
from autoscaler.domain.workload import Lengths, Slo
from autoscaler.performance import catalog
from autoscaler.planning.planner_messages import FleetChange
from autoscaler.state.model_state import PendingApproval
from streams.clock import Clock
from streams.console.console_feed import ConsoleFeed
from streams.console.console_routes import ConsoleRoutes
from streams.console.cpu_allowance import CpuAllowance
from streams.console.history import FINE_MS, FLEET, TOTALS, History, Sample, series_of
from streams.console.operator_endpoint import OperatorEndpoint
from streams.console.reasons_on_demand import ReasonsOnDemand
from streams.health.alert_webhook import Webhook
from streams.health.controller_facts import Facts, Identity
from streams.health.controller_metrics import Metrics
from streams.health.operators import Operators
from streams.health.status_server import HealthServer
from streams.health.tokens import NO_TOKEN, BearerToken
from streams.loop.control_state import ControlState, DesiredRecords
from tests.integration.console.served_loop import served_loop
from tests.integration.console.staged_decisions import (
    NOW_MS,
    context_of,
    reasons_of,
    staged_decisions,
)
from tests.integration.console.staged_demand import demand_at, target_at
from tests.integration.console.staged_fleets import fill_windows
from topics import checks
from topics.records import Control, Decision
from topics.time_base import TimeBase

OPERATOR = "an-operator-token"
TOKENS = 640.0
"""Tokens of a request."""
GPUS = ("H100-SXM", "L40S", "L4")
REGIONS = ("us-east", "eu-west", "ap-south")


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the staged fleet. models: names of the models. samples: number of samples in each
    model's history.
    """

    models: tuple[str, ...] = ("chat", "code", "mini")
    nodes: int = 26
    decisions: int = 60
    samples: int = 300


LARGE = Size(tuple(f"model-{k:03d}" for k in range(100)), 1000, 10_000, 300)


@dataclass
class Stage:
    """The rows that the page shows; a test may change them between steps. fixed: by model, values
    that do not follow the time."""

    size: Size
    now_ms: int = NOW_MS
    models: dict[str, Any] = field(default_factory=dict)
    nodes: dict[str, Any] = field(default_factory=dict)
    pools: dict[str, Any] = field(default_factory=dict)
    proposals: dict[str, Any] = field(default_factory=dict)
    controller: dict[str, Any] = field(default_factory=dict)
    written: list[Control] = field(default_factory=list)
    fixed: dict[str, dict[str, Any]] = field(default_factory=dict)

    def usd(self) -> float:
        return sum(self.pools[n["pool"]]["price"] for n in self.nodes.values() if n["instances"])


class StagedFeed(ConsoleFeed):
    """A controller's feed whose facts come from the stage."""

    def __init__(self, facts: Facts, stage: Stage, can_write: bool) -> None:
        super().__init__(facts, can_write)
        self.stage = stage
        # Tests publish many events in a short time; `test_cpu_allowance` tests the limit.
        self._allowance = CpuAllowance(math.inf, time.thread_time, time.monotonic)

    def _state(self) -> dict[str, Any]:
        stage = self.stage
        return {
            "form": 1, "source": "live", "now_ms": stage.now_ms, "speed": 1.0,
            "can_write": self._can_write,
            "controller": {**stage.controller, "usd": stage.usd(), "attained": 0.985},
            "models": dict(stage.models), "pools": dict(stage.pools), "nodes": dict(stage.nodes),
            "proposals": dict(stage.proposals),
        }  # fmt: skip

    def _sample(self) -> dict[str, Any] | None:
        if not self.history.due(self.stage.now_ms):
            return None
        of = {name: _sample_of(row) for name, row in self.stage.models.items()}
        of[FLEET] = _fleet_sample(self.stage)
        of = {name: _with_totals(self.history, name, sample) for name, sample in of.items()}
        self.history._sampled_ms = self.stage.now_ms
        for name, sample in of.items():
            self.history.add(name, self.stage.now_ms, sample)
        return {"t": self.stage.now_ms, "of": of}


@dataclass
class Console:
    """A served console. do: runs a function in the server's thread and returns its result."""

    url: str
    stage: Stage
    feed: StagedFeed
    latest: ControlState
    do: Callable[[Callable[[], Any]], Any]
    stop: Callable[[], Any]

    def step(self, seconds: int = 1) -> None:
        """Advance the stage and publish one event."""

        def now() -> None:
            self.stage.now_ms += 1000 * seconds
            drift(self.stage)
            self.feed.step()

        self.do(now)

    def timed_step(self) -> float:
        """`step`; returns the CPU seconds of the stage, which are none of the console's."""

        def now() -> float:
            began_s = time.thread_time()
            self.stage.now_ms += 1000
            drift(self.stage)
            took_s = time.thread_time() - began_s
            self.feed.step()
            return took_s

        return float(self.do(now))

    def decide(self, decision: Decision) -> None:
        """Add a decision, as if it came from the topic."""
        self.do(lambda: self.latest.take(decision, 0))


@contextmanager
def served(
    size: Size | None = None, read_token: str = "", port: int = 0, live: bool = False
) -> Iterator[Console]:
    """A console of a staged fleet. live: whether an event comes each second without `step`."""
    stage = staged(size or Size())
    with served_loop() as do:
        feed, server, latest = do(lambda: _made(stage, read_token, port))
        running = do(lambda: _begin(server, feed if live else None))
        try:
            yield Console(server.url, stage, feed, latest, do, lambda: _end(server, feed, running))
        finally:
            do(lambda: _end(server, feed, running))


async def _begin(server: HealthServer, live: StagedFeed | None) -> asyncio.Task[None] | None:
    await server.start()
    return asyncio.create_task(_beat(live)) if live is not None else None


async def _beat(feed: StagedFeed) -> None:
    while True:
        await asyncio.sleep(1.0)
        feed.stage.now_ms += 1000
        drift(feed.stage)
        feed.step()


async def _end(server: HealthServer, feed: StagedFeed, running: asyncio.Task[None] | None) -> None:
    if running is not None:
        running.cancel()
    feed.hub.close()
    await server.close()


class StagedReasons(ReasonsOnDemand):
    """Alternatives without a planner."""

    async def of_decision(self, model: str, key: tuple[int, int]) -> dict[str, Any]:
        return {"at": NOW_MS - 664_000, "reasons": reasons_of(model)}


class _Loop:
    """The parts of a controller's loop that the console uses."""

    def __init__(self, stage: Stage, latest: ControlState) -> None:
        self._stage = stage
        self.latest = latest
        self.leads = lambda: True
        self.clock = Clock(TimeBase(1.0, NOW_MS, 0))
        self.declared = lambda: Cluster((_POOL,), tuple(_service(n) for n in stage.size.models))

    @property
    def state(self) -> Any:
        """The leader's open proposals."""
        rows = self._stage.proposals.items()
        models = {m: Bag(advisory=Bag(proposal=_open(row["number"]))) for m, row in rows}
        return Bag(models=models)


def _open(number: int) -> PendingApproval:
    """A proposal of the leader that has not expired."""
    return PendingApproval(
        number, "scale_out", (), FleetChange(), (), (), 0, checks.MAX_MS, leader_token=3
    )


def _made(stage: Stage, token: str, port: int) -> tuple[StagedFeed, HealthServer, ControlState]:
    latest = ControlState(desired=DesiredRecords(claimed=9))
    loop = _Loop(stage, latest)
    loop.clock = replace(loop.clock, time_base=TimeBase(1.0, stage.now_ms, loop.clock.mono_ns()))
    facts = Facts(Identity("ctl-1", "b:1", "shoal.", True, True), loop,  # type: ignore[arg-type]
                  lambda: (True, 3, "ctl-1"))  # fmt: skip
    feed = StagedFeed(facts, stage, True)
    decisions = staged_decisions(stage.size.models, [*stage.pools], stage.size.decisions)
    for decision in decisions:
        latest.take(decision, 0)
        if decision.change:
            feed.book._contexts[decision.leader_token, decision.number] = context_of(decision)
    feed.book.add(latest.decisions)
    if stage.size.decisions > len(latest.decisions):
        feed.book.put_older(decisions)
    fill_history(feed, stage)
    fill_windows(feed.windows, feed.history, loop.declared())

    async def publish(control: Control) -> None:
        stage.written.append(control)
        latest.take(control, 0)
        if control.kind == "verdict":
            stage.proposals.pop(control.scope, None)

    webhook = Webhook(None, NO_TOKEN, loop.declared, lambda: 0.0)  # type: ignore[arg-type]
    metrics = Metrics(facts, lambda: 0, lambda: webhook.counts, dict)
    operators = Operators(BearerToken(text=OPERATOR))
    operator = OperatorEndpoint(loop, operators, publish)  # type: ignore[arg-type]
    routes = ConsoleRoutes(feed, operator, StagedReasons(facts, feed.book.requests))
    server = HealthServer(f"127.0.0.1:{port}", facts, metrics, webhook, lambda: True,
                          BearerToken(text=token), console=routes)  # fmt: skip
    return feed, server, latest


_POOL = Pool("us-east", "l4", catalog.gpu("L4"), 1, 4, Market.ON_DEMAND, 1.0)
_ARCHITECTURE = catalog.quantized(catalog.model("meta-llama/Llama-3.1-8B-Instruct"), "fp8")


def _service(name: str) -> Service:
    return Service(name, _ARCHITECTURE, Slo(2000.0, 60.0), lengths=Lengths(512.0, 128.0))


def staged(size: Size) -> Stage:
    """A fleet in mid-afternoon. One model grows, one waits for approval, and one node is lost."""
    draw = random.Random(7)
    stage = Stage(size)
    prices = {"H100-SXM": 28.4, "L40S": 7.2, "L4": 0.85}
    per_node = {"H100-SXM": 8, "L40S": 4, "L4": 1}
    for region in REGIONS:
        for gpu in GPUS:
            for market in ("on-demand", "spot"):
                declared = prices[gpu] * (0.4 if market == "spot" else 1.0)
                name = gpu.split("-")[0].lower()
                factor = draw.choice([1.0, 1.0, 1.12, 0.94]) if market == "spot" else 1.0
                stage.pools[f"{region}/{name}/{market}"] = {
                    "region": region, "name": name, "market": market, "gpu": gpu,
                    "per_node": per_node[gpu], "max": max(16, size.nodes // 8),
                    "declared": round(declared, 2), "price": round(declared * factor, 2),
                    "price_at": NOW_MS - 48_000 if market == "spot" else 0,
                    "price_stale": False, "aside": None,
                    "offer": draw.randint(0, 40) if market == "spot" else None,
                    "offer_at": NOW_MS - 48_000 if market == "spot" else 0,
                    "offer_stale": False,
                }  # fmt: skip
    pools = list(stage.pools)
    for k in range(size.nodes):
        pool = pools[(k * 7) % len(pools)]
        model = size.models[k % len(size.models)]
        state = "serving"
        if k % 17 == 4:
            state = "starting"
        elif k % 19 == 8:
            state = "draining"
        elif k == 5:
            state = "lost"
        gpus = list(range(min(2, stage.pools[pool]["per_node"])))
        stage.nodes[f"{pool.replace('/', '.')}.{k}"] = {
            "pool": pool, "state": state,
            "reclaim": NOW_MS + 90_000 if k == 10 else 0,
            "instances": [[model, "aggregated", state, gpus, 0, ""]], "faults": [],
        }  # fmt: skip
    for k, name in enumerate(size.models):
        stage.models[name] = _model(stage, k, name)
    held = size.models[-1]
    stage.models[held]["proposal"] = size.decisions
    stage.models[held]["word"] = f"proposal #{size.decisions} waits for approval"
    stage.models[held]["level"] = "attention"
    stage.models[held]["mode"] = "approve"
    stage.proposals[held] = {
        "number": size.decisions, "model": held, "kind": "scale_in",
        "change": "-2 1xl4 eu-west on-demand", "base": [["1xl4 eu-west on-demand", 6]],
        "reasons": ["demand at most 3.1 req/s for 12 min; target is 80% of capacity 17.6"],
        "at": NOW_MS - 300_000, "expires": NOW_MS + 1_500_000,
    }  # fmt: skip
    stage.controller = {
        "id": "ctl-1", "leads": True, "leader": "ctl-1", "token": 3, "unhealthy": "",
        "tick_age_s": 0, "writes": 412, "signed": True, "refused": 0, "open": [],
        "config": "3f2a91bc", "windows_s": [120, 1800], "lag_ms": {},
        "held": {}, "usd": 0.0, "budget": None,
        "planning": 0, "gap": 0.004, "planned_at": NOW_MS - 160_000,
    }  # fmt: skip
    return stage


def _model(stage: Stage, k: int, name: str) -> dict[str, Any]:
    row = {
        "mode": "act", "held": "", "target_why": "peak of 12.4 req/s in the last 30 min",
        "ttft_limit": 2000.0, "tpot_limit": 60.0, "percentile": 0.95, "utilization": 0.8,
        "spot_share": 0.5, "spot_now": 0.75 if k == 1 else 0.5, "spot_over": k == 1,
        "min": 1, "max": 0, "proposal": 0, "word": "steady", "level": "ok",
        "conditions": ["steady"], "remedy": "",
        "uncertain": "", "silent_s": 0,
        "guards": ["scale-in after 10 min of excess, at most 10% of capacity at a time"],
    }  # fmt: skip
    if row["spot_over"]:
        row |= {"level": "at_risk", "conditions": ["over_spot_limit", "steady"]}
        row["word"] = "75% of its capacity is on spot, 50% allowed"
    _move(stage, k, name, row)
    return row


def _move(stage: Stage, k: int, name: str, row: dict[str, Any]) -> None:
    mine = [n for n in stage.nodes.values() if n["instances"][0][0] == name]
    ready = sum(n["state"] == "serving" for n in mine)
    where: dict[tuple[str, str, str], int] = {}
    for node in mine:
        pool = stage.pools[node["pool"]]
        label = f"{pool['name']}-spot" if pool["market"] == "spot" else pool["name"]
        where[pool["region"], label, "aggregated"] = (
            where.get((pool["region"], label, "aggregated"), 0) + 1
        )
    target = target_at(k, stage.now_ms)
    demand = demand_at(k, stage.now_ms)
    row.update(
        demand=round(demand, 3), target=round(target, 3), wanted_rate=round(target / 0.8, 3),
        ready_rate=round(target / 0.8 * (ready / max(1, len(mine))), 3), ready=ready,
        wanted=len(mine), where=[[*key, count] for key, count in sorted(where.items())],
        ttft=round(600 + 900 * demand / max(target, 0.1), 1),
        tpot=round(24 + 24 * demand / max(target, 0.1), 1),
        attained=round(min(1.0, 0.999 - 0.02 * (k % 4)), 4),
        attained_now=round(min(1.0, 0.999 - 0.02 * (k % 4)), 4),
        usd=round(sum(stage.pools[n["pool"]]["price"] for n in mine), 2),
    )  # fmt: skip
    row.update(stage.fixed.get(name, {}))
    if ready < len(mine) and row["level"] == "ok":
        row["word"] = f"{len(mine) - ready} starting"


def drift(stage: Stage) -> None:
    """Move the figures of every model to the stage's present time."""
    for k, name in enumerate(stage.size.models):
        if name in stage.models:
            row = dict(stage.models[name])
            _move(stage, k, name, row)
            stage.models[name] = row


def _sample_of(row: dict[str, Any]) -> Sample:
    return {
        "demand": row["demand"], "target": row["target"], "wanted": row["wanted_rate"],
        "ready": row["ready_rate"], "ttft": row["ttft"], "tpot": row["tpot"],
        "attained": row["attained"], "attained_now": row["attained_now"], "usd": row["usd"],
        "tokens": TOKENS * row["demand"],
    }  # fmt: skip


def _fleet_sample(stage: Stage) -> Sample:
    rows = stage.models.values()
    return {
        "usd": stage.usd(), "demand": sum(r["demand"] for r in rows),
        "ready": sum(r["ready_rate"] for r in rows), "attained": 0.985,
        "nodes": float(len(stage.nodes)), "tokens": TOKENS * sum(r["demand"] for r in rows),
    }  # fmt: skip


def _with_totals(history: History, name: str, sample: Sample) -> Sample:
    """The sample with totals that grow at its rates since the last one."""
    series = (one for one in TOTALS if one in series_of(name))
    last = defaultdict(float, {s: (history.recent(name, s, 1) or [0.0])[-1] or 0.0 for s in series})
    requests = FINE_MS / 1000.0 * (sample["demand"] or 0.0)
    usd = FINE_MS / 3_600_000.0 * (sample["usd"] or 0.0)
    return {
        **sample,
        "ended": last["ended"] + requests,
        "met": last["met"] + requests * (sample["attained"] or 0.0),
        "spent": last["spent"] + usd,
    }


def fill_history(feed: StagedFeed, stage: Stage) -> None:
    """Samples of every model up to the stage's present time."""
    full_usd = stage.usd()
    for step in range(stage.size.samples, 0, -1):
        at_ms = stage.now_ms - step * FINE_MS
        total = 0.0
        for k, name in enumerate(stage.size.models):
            demand, target = demand_at(k, at_ms), target_at(k, at_ms)
            total += demand
            late = max(0.0, demand / target - 0.95)
            sample = {
                "demand": demand, "target": target, "wanted": target / 0.8,
                "ready": target_at(k, at_ms - 120_000) / 0.8, "ttft": 600 + 900 * demand / target,
                "tpot": 24 + 24 * demand / target, "attained": 0.997 - 0.1 * late, "usd": 3.0,
                "attained_now": 0.997 - 0.2 * late, "tokens": TOKENS * demand,
            }  # fmt: skip
            feed.history.add(name, at_ms, _with_totals(feed.history, name, sample))
        level = 0.62 + 0.38 * (1 - step / stage.size.samples)
        fleet = {"usd": full_usd * round(level * 16) / 16, "demand": total, "ready": total * 1.4,
                 "attained": 0.985, "nodes": float(len(stage.nodes)),
                 "tokens": TOKENS * total}  # fmt: skip
        feed.history.add(FLEET, at_ms, _with_totals(feed.history, FLEET, fleet))
