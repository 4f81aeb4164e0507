"""A controller without a broker, with its console over HTTP, for tests of the console."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autoscaler.decide import restore
from autoscaler.domain.cluster import Cluster, Market, Mode, Pool, Service
from autoscaler.domain.workload import Lengths, Slo
from autoscaler.estimate.windows import TelemetryWindows
from autoscaler.performance import catalog
from streams.clock import Clock
from streams.console.console_feed import ConsoleFeed
from streams.console.console_routes import ConsoleRoutes
from streams.console.operator_endpoint import OperatorEndpoint
from streams.console.reasons_on_demand import ReasonsOnDemand
from streams.health.alert_webhook import Webhook
from streams.health.controller_facts import Facts, Identity
from streams.health.controller_metrics import Metrics
from streams.health.operators import Network, Operators
from streams.health.status_server import HealthServer
from streams.health.tokens import NO_TOKEN, BearerToken
from streams.loop.control_state import ControlState, DesiredRecords
from streams.loop.tick_loop import Loop, Ports
from tests.hang_limit import HANG_S
from tests.unit.health.served_controller import Solver
from topics.records import Control
from topics.time_base import TimeBase

NOW_MS = 1_700_000_000_000
OPERATOR = "an-operator-token"
USER_HEADER = "X-Forwarded-User"
TINY = Service(
    model="tiny",
    architecture=catalog.quantized(catalog.model("meta-llama/Llama-3.1-8B-Instruct"), "fp8"),
    slo=Slo(2000.0, 100.0),
    lengths=Lengths(512.0, 128.0),
    req_per_s=1.0,
    mode=Mode.APPROVE,
)
POOLS = (
    Pool("us", "l4", catalog.gpu("L4"), 1, 4, Market.ON_DEMAND, 1.0),
    Pool("us", "l4", catalog.gpu("L4"), 1, 4, Market.SPOT, 0.4),
)


class TopicOfDecisions:
    """A publisher whose decisions are read at once, as from the topic."""

    sent = dropped = 0

    def __init__(self, latest: ControlState) -> None:
        self._latest = latest

    def put(self, record: Any) -> None:
        self._latest.take(record, 0)

    def apply(self, record: Any) -> None:
        self._latest.take(record, 0)


async def _at_once() -> None:
    pass


@dataclass
class World:
    """A controller with its console. now_s: monotonic clock. cpu_s: CPU clock of the console.
    written: commands as written to the topic; forgotten: Kafka keys that were deleted from it.
    before_read_back: awaited between the writing of a command and its reading.
    """

    loop: Loop
    feed: ConsoleFeed
    cluster: Cluster
    endpoint: OperatorEndpoint = field(init=False)
    url: str = ""
    now_s: float = 0.0
    cpu_s: float = 0.0
    leads: bool = True
    leader: str = "ctl-1"
    broken: bool = False
    written: list[Control] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    before_read_back: Callable[[], Awaitable[None]] = _at_once
    tick_ms: int = NOW_MS

    def run(self, seconds: int) -> None:
        """Tick once for each of `seconds` domain seconds."""
        for _ in range(seconds):
            self.tick_ms += 1000
            self.now_s += 1.0
            self.loop.tick(self.tick_ms)


@asynccontextmanager
async def world(
    models: tuple[str, ...] = ("tiny",),
    read_token: str = "",
    operator_token: str = OPERATOR,
    mode: Mode = Mode.APPROVE,
    operators_file: Path | None = None,
    token: int = 3,
    proxies: tuple[Network, ...] = (),
) -> AsyncIterator[World]:
    """A world with a listening server. Its feed has no task; tests call `feed.step()`."""
    latest = ControlState(desired=DesiredRecords(claimed=9))
    services = tuple(replace(TINY, model=name, mode=mode) for name in models)
    cluster = Cluster(POOLS, services)
    topic = TopicOfDecisions(latest)
    loop = Loop(
        restore(cluster, {}, {}, {}, (), NOW_MS, leader_token=token),
        lambda: held.cluster,
        TelemetryWindows(),
        latest,
        Ports(topic, topic, Solver()),  # type: ignore[arg-type]
        Clock(TimeBase(1.0, NOW_MS, 0), mono_ns=lambda: int(held.now_s * 1e9)),
        leads=lambda: held.leads,
    )
    held = World(loop, None, cluster)  # type: ignore[arg-type]
    facts = Facts(Identity("ctl-1", "b:1", "shoal.", True), loop,
                  lambda: (held.leads, token, held.leader))  # fmt: skip
    shared = BearerToken(text=operator_token)
    operators = Operators(shared, operators_file, USER_HEADER if proxies else "", proxies)
    held.feed = ConsoleFeed(facts, bool(operators), not proxies, cpu_s=lambda: held.cpu_s)

    async def publish(control: Control) -> None:
        if held.broken:
            raise ConnectionError("broker away")
        held.written.append(control)
        await held.before_read_back()
        latest.take(control, 0)

    async def forget(key: str) -> None:
        held.forgotten.append(key)
        latest.drop("controls", key)

    held.endpoint = OperatorEndpoint(loop, operators, publish, forget, answer_s=60.0)
    webhook = Webhook(None, NO_TOKEN, lambda: cluster, lambda: 0.0)  # type: ignore[arg-type]
    metrics = Metrics(facts, lambda: 0, lambda: webhook.counts, dict)
    loop.watchers = (facts.tick, held.feed.tick)
    routes = ConsoleRoutes(
        held.feed,
        held.endpoint,
        ReasonsOnDemand(facts, held.feed.book.requests, limit_s=HANG_S),
    )
    server = HealthServer(
        "127.0.0.1:0", facts, metrics, webhook, lambda: True,
        BearerToken(text=read_token), console=routes, operators=operators,
    )  # fmt: skip
    held.feed.unhealthy = server.unhealthy
    await server.start()
    held.url = server.url
    try:
        yield held
    finally:
        held.feed.hub.close()
        await server.close()
