"""Controllers over an in-memory log instead of a broker: the parts that read, decide and display.

No call waits: the log is a list, a tick is a call, and a plan is made when it is requested.
"""

from __future__ import annotations

import asyncio
import io
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from autoscaler.decide import ControllerState, restore
from autoscaler.domain.cluster import Cluster, Mode
from autoscaler.domain.node_names import node_ids
from autoscaler.domain.reason import Reason
from autoscaler.estimate.windows import TelemetryWindows
from autoscaler.planning.planner_messages import PlanAnswer, PlanRequest, no_plan_answer
from autoscaler.state.controller_state import Term
from executors.gateway.gateway_metrics import GatewayMetrics as GatewayMetrics
from executors.gateway.route_table import RouteTable
from executors.node.node_state import NodeState
from executors.node.reconcile import accept
from loadtests.extreme import Names
from streams.cli.doctor import of_status
from streams.cli.status import lines
from streams.clock import Clock
from streams.controller.composition import published
from streams.controller.control_topics import FOLLOWED, ControlTopics
from streams.controller.declared_cluster import DeclaredCluster
from streams.controller.demand_sources import gateways_sink
from streams.decision_log.observation_diff import ObservationWriter
from streams.files.shoal_yaml import Config, load_config
from streams.health.controller_facts import Facts, Identity
from streams.health.controller_metrics import Metrics
from streams.invalid_records import Poison
from streams.loop.control_state import ControlState, control_record_handler
from streams.loop.declared_names import DeclaredNames
from streams.loop.election import Election
from streams.loop.tick_loop import Loop, Ports
from streams.ports.demand_topic import DemandTopic
from streams.ports.record_signing import Seal
from streams.ports.telemetry_topic import TelemetryTopic
from streams.solver.solver_client import plan_here
from streams.solver.solver_wire import decode_request, encode_request
from streams.tools.up.live_view import View
from streams.tools.up.run_state import Picture
from streams.tools.up.screen_layout import Facts as Shown
from topics.checks import InvalidValue
from topics.codec import decode, encode, write_value
from topics.fleet import InstanceState, ObservedInstance, Status
from topics.leadership import Leadership
from topics.reason_codes import ReasonCode
from topics.records import Assignment, Routes
from topics.signing import Keys
from topics.telemetry import Telemetry
from topics.time_base import TimeBase
from topics.topic_table import TABLE, KeyDeletion, key_of, topic_of

NOW_MS = 1_800_000_000_000
_CONTROL = frozenset(topic.name for topic in FOLLOWED)


@dataclass(frozen=True, slots=True)
class Entry:
    """A record of the log. append_ms: append time by the broker's clock."""

    topic: str
    key: bytes | None
    value: bytes | None
    offset: int
    append_ms: int


@dataclass(slots=True)
class Fleet:
    """A log, the time, and executors that follow their assignments.

    raised: errors that planning raised.
    """

    config: Config
    now_ms: int = NOW_MS
    entries: list[Entry] = field(default_factory=list)
    offsets: Counter[str] = field(default_factory=Counter)
    raised: list[str] = field(default_factory=list)

    def put(self, topic: str, key: bytes | None, value: bytes | None) -> None:
        """Append one record."""
        offset = self.offsets[topic]
        self.offsets[topic] += 1
        self.entries.append(Entry(topic, key, value, offset, self.now_ms))

    def write(self, record: Any) -> None:
        """Encode and append a record or a deletion."""
        value = None if isinstance(record, KeyDeletion) else encode(record)
        self.put(topic_of(record).name, key_of(record), value)

    def executors(self) -> None:
        """Write the status of every node: all instances of its last assignment are ready."""
        assigned: dict[str, Assignment] = {}
        for entry in self.entries:
            if entry.topic == "assignments" and entry.value is not None:
                try:
                    record = decode("assignments", entry.value)
                except InvalidValue:
                    continue
                assigned[record.node] = record
        nodes = [(node, pool) for pool in self.config.cluster.pools for node in node_ids(pool)]
        for at, (node, pool) in enumerate(nodes):
            wanted = assigned.get(node)
            seen = tuple(
                ObservedInstance(
                    one.instance, one.model, one.phase, one.group, InstanceState.READY, one.gpus,
                    f"127.0.0.1:{1000 + at}", self.now_ms - 60_000, self.now_ms - 120_000,
                )
                for one in (wanted.instances if wanted else ())
                if not one.drain
            )  # fmt: skip
            generation = wanted.generation if wanted else 0
            token = wanted.leader_token if wanted and wanted.leader_token < 10**6 else 0
            self.write(Status(node, pool.id, "e", generation, self.now_ms, seen,
                              boot="b", observed_token=token))  # fmt: skip

    def gateways(self) -> None:
        """Write the telemetry of a gateway for the last second."""
        for service in self.config.cluster.services:
            end_ms = self.now_ms
            self.write(
                Telemetry(
                    service.model, "g1", "b", end_ms // 1000, end_ms, 1000, 0, 3, 3, 0, 0, 3, 1500,
                    1500, 300, 2, 10**6, ttft_ms={140: 3}, input_lengths={159: 3},
                    output_lengths={118: 3},
                )
            )  # fmt: skip

    def names(self, declared: dict[str, str]) -> Names:
        """The names that a writer to the topics may use."""
        cluster = self.config.cluster
        models = [*(s.model for s in cluster.services), *(r.name for r in cluster.routes)]
        groups, instances = [], []
        for entry in self.entries:
            if entry.topic == "status" and entry.value is not None:
                for one in decode("status", entry.value).instances:
                    groups.append(one.group)
                    instances.append(one.instance)
        pools = cluster.pools
        return Names(
            self.now_ms,
            tuple(models),
            tuple(node for pool in pools for node in node_ids(pool)[:2]),
            tuple(pool.id for pool in pools),
            tuple(dict.fromkeys(groups)) or ("m:a1@x/y/spot:1",),
            tuple(dict.fromkeys(instances)) or ("m-1-a0",),
            ("g1", "g2"),
            declared,
            ledger=tuple(
                decode("ledger", entry.value)
                for entry in self.entries
                if entry.topic == "ledger" and entry.value is not None
            ),
        )


class _Solver:
    """A planner that answers at once. The next tick gets the answer."""

    killed = 0

    def __init__(self, fleet: Fleet) -> None:
        self.news = asyncio.Event()
        self._fleet = fleet
        self._answers: list[PlanAnswer] = []

    def ask(self, request: PlanRequest, cluster: Cluster) -> None:
        try:
            self._answers.append(plan_here(*decode_request(encode_request(request, cluster))))
        except Exception as error:  # As in the solver, any failure is an answer.
            named = f"{type(error).__name__}: {error}"
            self._fleet.raised.append(named)
            why = Reason(ReasonCode.SOLVER_ERROR, quoted=named)
            self._answers.append(no_plan_answer(request, why))

    def take(self) -> tuple[PlanAnswer, ...]:
        found, self._answers = tuple(self._answers), []
        return found


class Controller:
    """One controller process. poison: the records that it refused."""

    def __init__(self, fleet: Fleet, token: int, merged: bool = False) -> None:
        self.fleet = fleet
        self._token = token
        self._read = 0
        self.poison: list[Poison] = []
        self.latest = ControlState()
        self.election = Election(f"boot-{token}")
        self.clock = clock = Clock(
            TimeBase(1.0, NOW_MS, 0),
            lambda: (fleet.now_ms - NOW_MS) * 1_000_000,
            lambda: fleet.now_ms,
        )
        self.declared = DeclaredCluster(fleet.config, self.latest)
        windows = TelemetryWindows(fleet.config.cluster.policy.global_window_s)
        known = DeclaredNames(
            self.declared, self.latest.desired.assignments, self.latest.dropped.undeclared
        )
        publisher = SimpleNamespace(put=fleet.write, sent=0, dropped=0)
        desired = published(self.declared, publisher, Seal(Keys(), clock))
        self.loop = Loop(
            ControllerState(Term(clock.now_ms())),
            self.declared,
            windows,
            self.latest,
            Ports(desired, publisher, _Solver(fleet)),  # type: ignore[arg-type]
            clock,
            leads=lambda: True,
        )
        on_record = control_record_handler(
            self.latest, self.election, clock, self.loop.overwrite,
            lambda alert: self.latest.take(alert, 0), known,
        )  # fmt: skip
        counts = {topic.name: topic.partitions for topic in TABLE}
        self._control = ControlTopics("", "", counts, on_record, self.latest.drop, self._bury)
        self._count = gateways_sink(windows, {}, lambda: None, known)
        kind = DemandTopic if merged else TelemetryTopic
        self._demand = kind("", "", clock, self._bury, counts)
        self.facts = Facts(Identity("c", "b", "", True), self.loop, lambda: (True, token, "c"))
        self._metrics = Metrics(self.facts, lambda: 0, dict, dict)
        self._observations = ObservationWriter()
        self.loop.watchers = (self.facts.tick, self._metrics.tick, self._record)

    def _bury(self, poison: Poison) -> None:
        self.poison.append(poison)
        self.fleet.write(poison.letter("c"))

    def _record(self, done: Any) -> None:
        write_value(self._observations.write(done.observation))
        write_value(done.effects)

    def read(self) -> None:
        """Read the new records of the log."""
        while self._read < len(self.fleet.entries):
            entry = self.fleet.entries[self._read]
            self._read += 1
            message = SimpleNamespace(
                value=entry.value, key=entry.key, partition=0, offset=entry.offset,
                timestamp=entry.append_ms, topic=entry.topic, headers=(),
            )  # fmt: skip
            if entry.topic in _CONTROL:
                self._control._fold(entry.topic, message)
            elif entry.topic == self._demand.topic.name:
                self._demand._take([message], self._count)

    def begin(self) -> None:
        """Become the leader, as `Terms` does."""
        self.fleet.write(Leadership("c", f"boot-{self._token}", "claim", self.fleet.now_ms))
        self.loop.windows.advance(self.fleet.now_ms)
        self.read()
        latest = self.latest
        latest.take_alerts()
        self.loop.begin(
            restore(
                self.declared(),
                latest.desired.assignments,
                latest.desired.routes,
                latest.statuses,
                latest.decisions,
                self.fleet.now_ms,
                leader_token=max(latest.desired.claimed, self._token),
                plan_number=latest.numbers.plan,
                next_serial=latest.numbers.serial,
                ledger=latest.desired.ledger.values(),
            )
        )

    def tick(self) -> None:
        """Read, decide, and display the current state."""
        self.read()
        self.loop.tick(self.fleet.now_ms)
        self.loop.say_again(self.fleet.now_ms - 300_000)
        found = self.facts.status()
        list(lines({**found, "leads": True}))
        list(of_status({**found, "leads": True}))
        write_value(found)
        for model in found["models"]:
            write_value(self.facts.explain(model["model"]))
        self._metrics.text()


def drawn(fleet: Fleet) -> None:
    """Pass all records of the log through the live view of `shoal up`, a
    gateway and an executor.
    """
    picture, view = Picture(fleet.config.cluster), View(Console(width=100, file=io.StringIO()))
    table = RouteTable(GatewayMetrics(), None, 0.0)
    table.set_highest_token(10**6)
    node = NodeState("n", "p")
    for entry in fleet.entries:
        if entry.value is None:
            continue
        try:
            record = decode(entry.topic, entry.value)
        except InvalidValue:
            continue
        picture.add(record)
        if isinstance(record, Routes):
            table.offer(record)
        elif isinstance(record, Assignment):
            node = accept(node, record)
    models = [service.model for service in fleet.config.cluster.services]
    picture.rows(fleet.now_ms), picture.services(fleet.now_ms), picture.progress(models)
    picture.unmet(fleet.now_ms), picture.gpu_hours(), picture.usd_per_h()
    picture.endpoints(), picture.reactions_s(), picture.behind()
    facts = Shown(("t",), "s", (), NOW_MS, 0, 0, 0, picture.usd(), None)
    view.update(picture, fleet.now_ms, facts)


def fleet_of(path: Path) -> Fleet:
    """A fleet declared by the file at `path`."""
    return Fleet(load_config(path, Mode.ACT))


__all__ = ["NOW_MS", "Controller", "Fleet", "drawn", "fleet_of"]
