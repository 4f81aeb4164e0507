"""Composition root of the controller: open every part, then run until the end.

Start order: broker and topics, last values of the control topics, telemetry windows, then leader
election. A standby reads every topic that the leader reads, so a takeover reads only the last few
records.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from autoscaler.decide import ControllerState
from autoscaler.domain.cluster import Cluster, Mode
from autoscaler.domain.validation import InvalidValue
from autoscaler.estimate.engine_view import EngineView
from autoscaler.estimate.windows import TelemetryWindows
from autoscaler.state.controller_state import Term
from streams.broker.consumer_lag import ConsumerLag
from streams.broker.topic_admin import ensure_topics
from streams.clock import Clock, wall_ms
from streams.controller.control_topics import ControlTopics
from streams.controller.controller_options import OperatorOptions
from streams.controller.dead_letters import DeadLetters
from streams.controller.decision_spans import DecisionSpans
from streams.controller.declared_cluster import DeclaredCluster
from streams.controller.demand_sources import demand_sources, prometheus_asks, prometheus_queries
from streams.controller.finalizer import Finalizer
from streams.controller.key_sweep import KeyOwners, KeySweep
from streams.controller.leader_producer import LeaderProducer
from streams.controller.leadership import LeadershipClient
from streams.controller.leadership_term import Terms
from streams.controller.operator_endpoints import open_operator_endpoints
from streams.controller.outbox import Outbox
from streams.controller.topic_restore import TopicRestore
from streams.controller.topic_watch import TopicWatch, report_changed
from streams.files.plan_inputs import load_demand, with_workload
from streams.files.served_names import served_names, unmanaged_names
from streams.files.shoal_yaml import Config, load_config
from streams.files.user_errors import UserError
from streams.health.controller_facts import Identity
from streams.health.exposure import open_points
from streams.loop.control_state import ControlState, control_record_handler
from streams.loop.declared_names import DeclaredNames
from streams.loop.election import Election
from streams.loop.tick_loop import Loop, Ports
from streams.ports.actuator import Publisher, PublishingActuator
from streams.ports.demand_source import DemandSource, Sink
from streams.ports.demand_topic import DemandTopic
from streams.ports.engine_views import LIMIT_S, EngineViews
from streams.ports.merged_records import MergedRecords
from streams.ports.node_provider import Provisioner
from streams.ports.record_signing import Seal
from streams.ports.serving_pods import ServingPods, report_at
from streams.ports.telemetry_ends import TelemetryEnds
from streams.ports.telemetry_topic import TelemetryTopic
from streams.ports.topic_reader import TopicReader
from streams.ports.unmanaged_counts import UnmanagedServers
from streams.ports.vllm_queries import metric_sources
from streams.ports.worker_demand import WorkerDemand
from streams.solver.solver_client import Solver, solver_argv
from streams.warm_up import warmed
from topics.broker_clock import BrokerClock
from topics.edge.kafka_clients import producer as new_producer
from topics.edge.kafka_clients import security
from topics.edge.key_files import read_keys
from topics.edge.tracing import open_spans
from topics.macs import Signer, Verifier
from topics.records import Alert
from topics.time_base import TimeBase
from topics.topic_table import LEADERSHIP

log = logging.getLogger(__name__)
R = TypeVar("R", bound=TopicReader)

_FLUSH_S = 0.5
_STOP_S = 0.7
_STALL_REAL_S = 5.0
_SWEEP_S = 1.0


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the controller command. default_mode, cautious: defaults if the file declares no
    mode or no capacity.

    workload: a demand file, for models whose workload the file does not declare. workers: whether
    window workers merge the telemetry, on a real Kafka.
    """

    config: Path
    broker: str
    time_base: TimeBase
    controller_id: str
    prefix: str
    default_mode: Mode
    cautious: bool = True
    operated: OperatorOptions = field(default_factory=OperatorOptions)
    workload: Path | None = None
    workers: bool = True


OnStanding = Callable[[int, str], None]
"""Callback with (own leader token, or 0 for a standby; name of the leader).

Called once the controller is a standby, and after the first tick of each of its terms.
"""


async def run_controller(
    options: Options,
    end: asyncio.Event,
    on_standing: OnStanding,
    on_url: Callable[[str], None] = lambda _: None,
) -> None:
    """Run the controller until `end` is set. on_url: called with the URL of the HTTP endpoint, ""
    for none, before `on_standing`.

    Raises UserError for an invalid file, BrokerUnreachable, TopicsUnusable, and any exception that
    crashed one of the controller's loops.
    """
    config = _config(options)
    config = _patient(config, options.time_base.speed)
    if options.workload is not None:
        demands = load_demand(options.workload, config.cluster)
        config = replace(config, cluster=with_workload(config.cluster, demands))
    broker_clock = BrokerClock(time.monotonic_ns, wall_ms)
    clock = Clock(options.time_base, broker_ms=broker_clock.now_ms)
    # Invalid queries fail here, before this controller claims leadership.
    queries = prometheus_queries(config)
    keys, spans = read_keys(), open_spans("shoal-controller", options.controller_id)
    exposed = open_points(keys, security(), options.broker)
    for point in exposed:
        log.warning("open: %s (%s); to close it, %s", point.said, point.code, point.mend)
    seal, signer, verifier = Seal(keys, clock), Signer(keys, broker_clock.now_ms), Verifier(keys)
    found = await ensure_topics(options.broker, options.prefix)
    report_changed(found)
    latest, election = ControlState(), Election(uuid.uuid4().hex)
    words = new_producer(options.broker, options.controller_id, request_timeout_ms=10_000)
    written = LeaderProducer(
        options.broker, options.controller_id, options.prefix, not found.embedded
    )
    seat = LeadershipClient(
        words,
        LEADERSHIP.wire_name(options.prefix),
        options.controller_id,
        election,
        clock,
        # The embedded broker stamps no real time on acknowledgements, so this machine's clock is
        # used.
        (lambda _append_ms, _sent_ns: None) if found.embedded else broker_clock.add_sample,
    )
    outbox = Outbox(written, options.prefix, seat.leads, signer, verifier.last_signed_ms)
    bury = DeadLetters(outbox, latest, options.controller_id, seat.leads)
    windows = TelemetryWindows(config.cluster.policy.global_window_s)
    declared = DeclaredCluster(config, latest)
    known = DeclaredNames(
        declared, latest.desired.assignments, latest.dropped.undeclared, latest.desired.size
    )
    desired = published(declared, outbox, seal)
    solver = Solver(solver_argv())
    loop = Loop(
        ControllerState(Term(clock.now_ms())),
        declared,
        windows,
        latest,
        Ports(desired, outbox, solver),
        clock,
        leads=seat.leads,
        refresh_ms=seal.valid_ms // 3,
    )

    loop.traced = DecisionSpans(spans).traced
    restore = TopicRestore(loop)
    loop.watchers = (Finalizer(latest, declared.in_file, outbox), restore)
    sweep = KeySweep(KeyOwners(known, latest, lambda: loop.state), outbox)

    def may_delete() -> bool:
        """Whether the state of this term is known, so that a key without an owner has none."""
        term = loop.state.term
        began = bool(term.ticked_ms) and term.leader_token == election.highest
        return began and seat.leads() and declared().may_change

    def on_gone(topic: str, key: str) -> None:
        sweep.forget(topic, key.encode())
        restore.restore_key(topic, key)
        latest.drop(topic, key)

    provisioner = None
    if config.provision:
        provisioner = Provisioner(
            config.provision,
            declared,
            latest.desired.assignments,
            latest.statuses,
            lambda: seat.leads() and declared().may_change,
            clock.now_ms,
        )

    def alerted(alert: Alert, views: Mapping[str, EngineView]) -> None:
        latest.engines.update(views)
        latest.take(alert, 0)

    alerts = EngineViews(
        prometheus_asks(config, LIMIT_S).values(),
        lambda: served_names(declared().services),
        clock.now_ms,
        alerted,
        lambda: metric_sources(declared().services),
    )

    control = ControlTopics(
        options.broker,
        options.prefix,
        found.partitions,
        control_record_handler(latest, election, clock, loop.overwrite, alerts.take, known),
        on_gone,
        bury,
        lambda: [node for node, desired in latest.desired.assignments.items() if desired.instances],
        found.embedded,
        verifier=verifier,
        on_forged=loop.overwrite_forged,
        on_key=lambda topic, key: sweep.note(topic, key, clock.now_s()),
        on_created=restore.note_created,
    )
    sweep.reread = control.reread
    merged = MergedRecords(clock)

    def reader(kind: type[R], starts: Mapping[int, int] | None = None) -> R:
        return kind(
            options.broker,
            options.prefix,
            clock,
            bury,
            found.partitions,
            config.cluster.policy.global_window_s,
            found.embedded,
            verifier,
            merged=merged,
            starts=starts,
        )

    telemetry: TelemetryTopic | WorkerDemand = reader(TelemetryTopic)
    if options.workers and not found.embedded:
        ends = TelemetryEnds(options.broker, options.prefix, found.partitions)
        own = partial(reader, TelemetryTopic)
        telemetry = WorkerDemand(reader(DemandTopic), own, ends)
    sources = demand_sources(config, queries, clock, windows, telemetry, loop.pace.fresh.set, known)

    def lags() -> tuple[ConsumerLag, ...]:
        return control.behind, *telemetry.lags

    loop.late_s = lambda: {name: s for lag in lags() for name, s in lag.late_s().items()}
    terms = Terms(
        seat, loop, written, outbox, control, bury.flush, sources, on_standing, config.provision
    )
    await warmed(any(service.pipelines != "none" for service in config.cluster.services))
    await words.start()
    try:
        # The first acknowledgement gives the broker's time, and the ages of records follow from it.
        await seat.introduce()
        await control.start()
        windows.advance(clock.now_ms())
        for source, sink in sources:
            await source.replay(sink)
        loops: dict[str, Callable[[], Awaitable[None]]] = {
            "control topics": control.follow,
            "seat": seat.run,
            "terms": terms.run,
            "solver": solver.run,
            "refresh": loop.refresh,
            "keys": lambda: _sweeping(sweep, clock, may_delete),
        }
        for number, (source, sink) in enumerate(sources):
            loops[f"demand {number}"] = _following(source, sink)
        if provisioner is not None:
            loops["nodes"] = provisioner.run
        if config.serving_pods:
            report = report_at(config.serving_pods)
            counter = ServingPods(report, declared, latest.unmanaged)
            loops["unmanaged servers"] = counter.run
        elif config.prometheus:
            loops["unmanaged servers"] = _unmanaged(config, declared, latest).run
        if not found.embedded:
            watch = TopicWatch(
                options.broker, options.prefix, control, telemetry, restore.note_created
            )
            loops["topics"] = watch.run
        identity = Identity(
            options.controller_id,
            options.broker,
            options.prefix,
            found.embedded,
            bool(keys.cluster),
            exposed,
        )

        def leader() -> tuple[bool, int, str]:
            return seat.leads(), election.highest, election.leader

        def behind() -> dict[str, int]:
            return {name: count for lag in lags() for name, count in lag.records.items()}

        async with open_operator_endpoints(
            options.operated,
            identity,
            loop,
            words,
            signer,
            leader,
            behind,
            telemetry.merging,
            verifier,
            keys,
        ) as url:
            on_url(url)
            await _until_over(loops, end, outbox, seat)
        log.info("%d ticks, %d skipped", loop.ticks.count, loop.ticks.skipped)
    finally:
        closings = (control.close(), written.close(), words.stop())
        await _within(_STOP_S, _gone([asyncio.ensure_future(closing) for closing in closings]))


def _config(options: Options) -> Config:
    """Read the configuration file. UserError for any fault in it. If a value is rejected later,
    that is a bug, unless a record set the value.
    """
    try:
        return load_config(options.config, options.default_mode, cautious=options.cautious)
    except InvalidValue as error:
        raise UserError(f"{options.config}: {error}") from error


def _patient(config: Config, speed: float) -> Config:
    """`config` with a longer silence limit for nodes at a high `speed`, because pauses of a node
    take real time.
    """
    policy = config.cluster.policy
    silent_s = max(policy.node_silent_s, min(3600.0, _STALL_REAL_S * speed))
    cluster = replace(config.cluster, policy=replace(policy, node_silent_s=silent_s))
    return replace(config, cluster=cluster)


def _unmanaged(config: Config, declared: DeclaredCluster, latest: ControlState) -> UnmanagedServers:
    """Counter of vLLM servers that Shoal did not start, for models that declare
    `unmanaged`."""
    return UnmanagedServers(
        prometheus_asks(config).values(),
        lambda: unmanaged_names(declared().services),
        lambda: [seen.endpoint for status in latest.statuses.values() for seen in status.instances],
        latest.unmanaged,
        lambda: metric_sources(declared().services),
    )


def published(declared: Callable[[], Cluster], outbox: Publisher, seal: Seal) -> PublishingActuator:
    """Actuator that publishes to executors and gateways only while the declaration lets Shoal
    change something.

    `decide` makes no assignments for models in other modes. This is a second safeguard.
    """
    return PublishingActuator(outbox, lambda: declared().may_change, seal)


async def _sweeping(sweep: KeySweep, clock: Clock, may_delete: Callable[[], bool]) -> None:
    """Sweep once a second while `may_delete`, without end."""
    while True:
        await asyncio.sleep(_SWEEP_S)
        if may_delete():
            sweep.sweep(clock.now_s())


def _following(source: DemandSource, sink: Sink) -> Callable[[], Awaitable[None]]:
    return lambda: source.follow(sink)


async def _within(limit_s: float, stopping: Coroutine[Any, Any, Any]) -> None:
    """Wait for `stopping`, at most `limit_s` real seconds, because a Kafka client can wait for an
    unreachable broker without a limit."""
    task = asyncio.ensure_future(stopping)
    done, _ = await asyncio.wait({task}, timeout=limit_s)
    for one in done:
        if not one.cancelled():  # A client cancels itself if its broker is unreachable.
            one.result()


async def _until_over(
    loops: Mapping[str, Callable[[], Awaitable[None]]],
    end: asyncio.Event,
    outbox: Outbox,
    seat: LeadershipClient,
) -> None:
    """Run the loops until `end`, then flush the outbox and resign. Raises the exception that
    crashed a loop."""
    tasks: dict[asyncio.Future[Any], str] = {
        asyncio.ensure_future(run()): name for name, run in loops.items()
    }
    ended: asyncio.Future[Any] = asyncio.ensure_future(end.wait())
    try:
        await asyncio.wait({ended, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        for task, name in tasks.items():
            if task.done():
                task.result()
                raise RuntimeError(f"the loop of {name} ended by itself")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_S):
                await outbox.flushed()
    finally:
        for task in (*tasks, ended):
            task.cancel()
        await _within(_STOP_S, _gone([*tasks, ended]))
    await seat.resign()


async def _gone(tasks: Iterable[asyncio.Future[Any]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)
