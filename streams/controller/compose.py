"""The composition root of the controller: opens everything, rebuilds, then runs until the end.

Owns the order of a start: broker and topics, rebuild from the topics, claim to lead, windows from
telemetry, and only then agents and ticks. Decides nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer

from autoscaler.decide import rebuild
from autoscaler.demand.windows import TelemetryWindows
from autoscaler.domain.cluster import Cluster, Mode
from streams.broker.admin import ensure_topics
from streams.clock import Clock
from streams.controller.app import AppSettings, make_app
from streams.controller.declared import Declared
from streams.controller.latest import Latest
from streams.controller.leadership import claim, leads
from streams.controller.loop import Loop, Ports
from streams.controller.operated import operated
from streams.controller.options import Operated
from streams.controller.outbox import Outbox, Publisher
from streams.controller.rebuild import read_latest
from streams.files.config import Config, load_config
from streams.files.errors import UserError
from streams.poison import Poison
from streams.ports.actuator import Actuator, ExecutorActuator
from streams.ports.demand import DemandSource, Sink
from streams.ports.observed import ExecutorStatuses
from streams.ports.promql import PromqlDemand, prometheus
from streams.ports.routes import GatewayRoutes, RouteSink
from streams.ports.seal import Seal, read_keys
from streams.ports.telemetry_topic import TelemetryTopic
from streams.solver.client import Solver, solver_argv
from topics.records import Telemetry
from topics.timebase import TimeBase

log = logging.getLogger(__name__)

_FLUSH_S = 0.5
_STOP_S = 1.0


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says. default_mode: what holds where the file names no mode."""

    config: Path
    broker: str
    time_base: TimeBase
    controller_id: str
    prefix: str
    default_mode: Mode
    operated: Operated = field(default_factory=Operated)


async def run_controller(
    options: Options, end: asyncio.Event, on_ready: Callable[[int], None]
) -> None:
    """Run until `end` is set. on_ready(leader token): called after the first tick.

    Raises UserError for a bad file, BrokerUnreachable, TopicsUnusable, and whatever crashed the
    application.
    """
    config = load_config(options.config, options.default_mode)
    cluster, clock = config.cluster, Clock(options.time_base)
    queries = asked_of_prometheus(config)  # refused before this controller claims to lead
    seal = Seal(read_keys(), clock)
    found = await ensure_topics(options.broker, options.prefix)
    # A group of this boot only: nobody waits for a dead member's session to end.
    group = f"shoal-{options.controller_id}-{uuid.uuid4().hex[:12]}"
    latest, poisoned = await read_latest(options.broker, options.prefix, group)
    producer = AIOKafkaProducer(
        bootstrap_servers=options.broker,
        client_id=options.controller_id,
        acks="all",
        request_timeout_ms=10_000,
    )
    await producer.start()
    try:
        token = await claim(producer, options.prefix, options.controller_id, clock)
        outbox = Outbox(producer, options.prefix, lambda: leads(latest, token))
        bury = _DeadLetters(outbox, latest, options.controller_id)
        for poison in poisoned:
            bury(poison)
        windows = TelemetryWindows(cluster.policy.global_window_s)
        sources = _sources(options, config, queries, clock, bury, found.embedded, windows)

        windows.advance(clock.now_ms())
        for source, sink in sources:
            await source.replay(sink)
        declared = Declared(config, latest)
        actuator, routes = _sinks(declared, outbox, seal)
        solver = Solver(solver_argv())
        state = rebuild(
            declared(),
            latest.assignments,
            latest.routes,
            latest.statuses,
            latest.decisions,
            clock.now_ms(),
            leader_token=token,
            plan_number=latest.plan_number,
        )
        ports = Ports(ExecutorStatuses(latest.statuses), actuator, routes, outbox, solver)
        loop = Loop(
            state, declared, windows, latest, ports, clock, leads=lambda: leads(latest, token)
        )

        async def ticks() -> None:
            # What piled up while we were away is no silence: read it before the first tick.
            for source, _ in sources:
                await source.live()
            await loop.run(lambda: on_ready(token))

        services: dict[str, Callable[[], Awaitable[None]]] = {
            "outbox": outbox.run,
            "solver": solver.run,
            "ticks": ticks,
            "republish": loop.republish,
        }
        for number, (source, sink) in enumerate(sources):
            services[f"demand-{number}"] = _following(source, sink)
        app = make_app(
            AppSettings(options.broker, group, options.prefix, 40 if found.embedded else 500),
            latest.take,
            bury,
            latest.drop,
            services,
        )
        await app.start()
        try:
            async with operated(options.operated, options.controller_id, loop):
                await _until_over(app, end)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FLUSH_S):
                    await outbox.flushed()
        finally:
            await _within(_STOP_S, app.stop())
        log.info("%d ticks, %d skipped", loop.ticks.count, loop.ticks.skipped)
    finally:
        await _within(_STOP_S, producer.stop())


class _DeadLetters:
    """Writes each poisoned place to dead-letters once."""

    def __init__(self, outbox: Outbox, latest: Latest, reader: str) -> None:
        self._outbox = outbox
        self._latest = latest
        self._reader = reader

    def __call__(self, poison: Poison) -> None:
        if poison.place in self._latest.dead:
            return
        self._latest.bury(poison.place)
        log.warning("%s at %d: %s", poison.topic, poison.offset, poison.why)
        self._outbox.put(poison.letter(self._reader))


def _sources(
    options: Options,
    config: Config,
    queries: Mapping[str, str],
    clock: Clock,
    bury: Callable[[Poison], None],
    embedded: bool,
    windows: TelemetryWindows,
) -> list[tuple[DemandSource, Sink]]:
    """Our gateways' telemetry, and Prometheus for models that name a query, each with its sink."""
    topic = TelemetryTopic(
        options.broker,
        options.prefix,
        clock,
        bury,
        config.cluster.policy.global_window_s,
        embedded,
    )
    found: list[tuple[DemandSource, Sink]] = [(topic, gateways_sink(windows, queries))]
    if queries:
        # One Prometheus answers for all; several regions need a federated one.
        url = next(iter(config.prometheus.values()))
        found.append((PromqlDemand(prometheus(url), queries, clock), prometheus_sink(windows)))
    return found


def asked_of_prometheus(config: Config) -> dict[str, str]:
    """Model -> PromQL. UserError: a query, and nobody to ask."""
    queries = {s.model: s.demand_query for s in config.cluster.services if s.demand_query}
    if queries and not config.prometheus:
        model = next(iter(queries))
        raise UserError(f"{config.path}: models.{model}.demand: no address under prometheus")
    return queries


def gateways_sink(windows: TelemetryWindows, queries: Mapping[str, str]) -> Sink:
    """Counts what gateways report. Where Prometheus is asked, only that they live is noted: the
    same request must not be counted twice, nor our gateway's zero hide that Prometheus is away."""

    def sink(record: Telemetry, event_ms: int) -> None:
        if record.model in queries:
            windows.hear(record, event_ms)
        else:
            windows.add(record, event_ms)

    return sink


def prometheus_sink(windows: TelemetryWindows) -> Sink:
    """Counts what Prometheus says, which is no gateway: it confirms no routes."""

    def sink(record: Telemetry, event_ms: int) -> None:
        windows.add(record, event_ms, from_gateway=False)

    return sink


def _sinks(
    declared: Callable[[], Cluster], outbox: Publisher, seal: Seal
) -> tuple[Actuator, RouteSink]:
    """Executors and gateways, while some model is in mode act; else nothing leaves at all.

    Models in other modes get no assignments from `decide` either: this is the second lock.
    """

    def acting() -> bool:
        return any(service.mode is Mode.ACT for service in declared().services)

    return ExecutorActuator(outbox, acting, seal), GatewayRoutes(outbox, acting, seal)


def _following(
    source: DemandSource, sink: Callable[[Telemetry, int], None]
) -> Callable[[], Awaitable[None]]:
    return lambda: source.follow(sink)


async def _within(limit_s: float, stopping: Coroutine[Any, Any, Any]) -> None:
    """Wait for `stopping`, but no longer: with the broker gone, clients never stop waiting."""
    task = asyncio.ensure_future(stopping)
    done, _ = await asyncio.wait({task}, timeout=limit_s)
    for one in done:
        one.result()


async def _until_over(app: object, end: asyncio.Event) -> None:
    """Wait for `end`, or raise what crashed the application."""
    crashed = asyncio.create_task(app.wait_until_stopped())  # type: ignore[attr-defined]
    ended = asyncio.create_task(end.wait())
    try:
        await asyncio.wait({crashed, ended}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        crashed.cancel()
        ended.cancel()
    reason = getattr(app, "crash_reason", None)
    if reason is not None:
        raise reason
    if not end.is_set():
        raise RuntimeError("the Faust application stopped by itself")
