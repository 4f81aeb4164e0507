"""A controller, its topics and a gateway in virtual time, without a broker.

The topics keep records as a compacted topic does: after `compact`, the last value of each key, and
tombstones until they expire. The controller reads them through `ControlTopics`, decides in its tick
loop and writes through a signer. No instance is ever started, because no planner answers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoscaler.decide import restore
from autoscaler.estimate.windows import TelemetryWindows
from executors.gateway.gateway_metrics import GatewayMetrics
from executors.gateway.route_table import RouteTable
from streams.clock import Clock
from streams.controller.composition import published
from streams.controller.control_topics import FOLLOWED, ControlTopics
from streams.controller.declared_cluster import DeclaredCluster
from streams.controller.finalizer import Finalizer
from streams.controller.key_sweep import KeyOwners, KeySweep
from streams.controller.topic_restore import TopicRestore
from streams.files.shoal_yaml import load_config
from streams.invalid_records import Poison
from streams.loop.control_state import ControlState, control_record_handler
from streams.loop.declared_names import DeclaredNames
from streams.loop.election import Election
from streams.loop.tick_loop import Loop, Ports
from streams.ports.record_signing import Seal
from topics.checks import InvalidValue
from topics.codec import decode, encode
from topics.keys import Keys, Principal, credential
from topics.macs import Signer, Verifier
from topics.records import DeclaredService, Routes
from topics.time_base import TimeBase
from topics.topic_table import Cleanup, KeyDeletion, key_of, topic, topic_of

T0 = 1_800_000_000_000
CONFIG = """
mode: act
regions: {eu: {l4: {gpu: L4, max: 3, price: 0.85}}}
models:
  mini: {source: openai/gpt-oss-20b, slo: {ttft: 2s, tpot: 80ms}}
"""
TINY = "{source: openai/gpt-oss-20b, slo: {ttft: 1s, tpot: 50ms}, max_len: 8192}"


@dataclass
class Message:
    """A record as a consumer delivers it."""

    key: bytes | None
    value: bytes | None
    headers: Any
    offset: int
    timestamp: int
    partition: int = 0


class Log:
    """The topics, one partition each."""

    def __init__(self) -> None:
        self.topics: dict[str, list[Message]] = defaultdict(list)
        self._offset = 0

    def write(
        self, name: str, key: bytes | None, value: bytes | None, now_ms: int, headers: Any = ()
    ) -> None:
        self._offset += 1
        self.topics[name].append(Message(key, value, headers, self._offset, now_ms))

    def compact(self, expire: bool = False) -> None:
        """Keep the last record of each key; with `expire`, a day has passed since the last
        tombstone."""
        for name, messages in self.topics.items():
            if topic(name).cleanup is Cleanup.COMPACT:
                last = {message.key: message for message in messages}
                kept = sorted(last.values(), key=lambda message: message.offset)
                messages[:] = [m for m in kept if m.value is not None or not expire]

    def keys(self) -> dict[str, set[bytes | None]]:
        """The keys with a value on each compacted topic."""
        found: dict[str, set[bytes | None]] = {}
        for name, messages in self.topics.items():
            if topic(name).cleanup is Cleanup.COMPACT:
                last = {message.key: message.value for message in messages}
                found[name] = {key for key, value in last.items() if value is not None}
        return found


def without_hours(keys: dict[str, set[bytes | None]]) -> dict[str, set[bytes | None]]:
    """`keys` without the hours of the declared model, which come with time."""
    hours = {key for key in keys["ledger"] if (key or b"").startswith(b"arrivals/mini/")}
    return {**keys, "ledger": keys["ledger"] - hours}


class SilentSolver:
    """A planner that never answers."""

    def ask(self, request: Any, cluster: Any) -> None:
        pass

    def take(self) -> tuple[Any, ...]:
        return ()


class NamesWorld:
    """One controller that leads, and one gateway. keys: the cluster's keys of the controller."""

    def __init__(self, folder: Path, keys: Keys | None = None) -> None:
        self.log = Log()
        self.now_ms = T0
        self.token = 0
        self.keys = keys or Keys()
        path = folder / "shoal.yaml"
        path.write_text(CONFIG)
        self.config = load_config(path)
        self.poison: list[Poison] = []
        self._signer = Signer(self.keys, lambda: self.now_ms)
        self._operator = Signer(self.keys, lambda: self.now_ms)
        self._version = 0
        self.lead()
        self.table = RouteTable(GatewayMetrics(), folder, 0.0)
        self.table.set_highest_token(1000)
        self._gateway_read = 0
        own = credential(keys.cluster, Principal.GATEWAY, "g") if keys else ""
        self._gateway_verifier = Verifier(Keys(gateway=own), rereads=True)

    @property
    def now_s(self) -> float:
        return (self.now_ms - T0) / 1000.0

    def lead(self) -> None:
        """A new controller reads all topics and leads."""
        self.token += 1
        clock = Clock(TimeBase(1.0, T0, 0), lambda: (self.now_ms - T0) * 10**6, lambda: self.now_ms)
        self.latest = ControlState()
        self.declared = DeclaredCluster(self.config, self.latest)
        desired = self.latest.desired
        self.known = DeclaredNames(
            self.declared, desired.assignments, self.latest.dropped.undeclared, desired.size
        )
        ports = Ports(published(self.declared, self, Seal(self.keys, clock)), self, SilentSolver())  # type: ignore[arg-type]
        state = restore(self.declared(), {}, {}, {}, (), self.now_ms)
        self.leads = False
        self.loop = Loop(
            state, self.declared, TelemetryWindows(), self.latest, ports, clock, lambda: self.leads
        )
        self.restore = TopicRestore(self.loop)
        self.loop.watchers = (Finalizer(self.latest, self.declared.in_file, self), self.restore)
        self.sweep = KeySweep(KeyOwners(self.known, self.latest, lambda: self.loop.state), self)
        self.reread: set[str] = set()
        self.sweep.reread = self.reread.add
        desired.claimed = self.token
        self.control = ControlTopics(
            "",
            "",
            {},
            control_record_handler(
                self.latest, Election("b"), clock, self.loop.overwrite, print, self.known
            ),
            self._on_gone,
            self.poison.append,
            verifier=Verifier(self.keys),
            on_forged=self.loop.overwrite_forged,
            on_key=lambda name, key: self.sweep.note(name, key, self.now_s),
        )
        self._read: dict[str, int] = {}
        self.read()
        self.leads = True
        self.loop.begin(
            restore(
                self.declared(),
                desired.assignments,
                desired.routes,
                self.latest.statuses,
                self.latest.decisions,
                self.now_ms,
                leader_token=self.token,
                ledger=desired.ledger.values(),
            )
        )

    def _on_gone(self, name: str, key: str) -> None:
        self.sweep.forget(name, key.encode())
        self.restore.restore_key(name, key)
        self.latest.drop(name, key)

    def put(self, record: Any) -> None:
        """Write a record of the controller, as its outbox does."""
        name, key = topic_of(record).name, key_of(record)
        value = None if isinstance(record, KeyDeletion) else encode(record)
        if (last_ms := self.control._verifier.last_signed_ms(name, key)) > 0:
            self._signer.sign_after(name, key, last_ms)
        self.log.write(name, key, value, self.now_ms, self._signer.headers(name, key, value))

    def read(self) -> None:
        """The controller reads the new records of each topic."""
        for one in FOLLOWED:
            since = -1 if one.name in self.reread else self._read.get(one.name, -1)
            self.reread.discard(one.name)
            for message in list(self.log.topics[one.name]):
                if message.offset > since:
                    self.control._fold(one.name, message)
                    self._read[one.name] = message.offset

    def run(self, seconds: int) -> None:
        """Read, tick and sweep once a second; the gateway reads the routes."""
        for _ in range(seconds):
            self.now_ms += 1000
            self.read()
            self.loop.tick(self.now_ms)
            self.sweep.sweep(self.now_s)
            self.gateway_reads()

    def rest(self) -> None:
        """A minute passes without records."""
        self.run(2)
        self.now_ms += 61_000
        self.run(2)

    def gateway_reads(self) -> None:
        """The gateway reads the new routes. Without a valid signature it ignores them."""
        for one in self.log.topics["routes"]:
            if one.offset <= self._gateway_read:
                continue
            self._gateway_read = one.offset
            if self._gateway_verifier.refusal(
                "routes", one.key, one.value, one.headers, one.timestamp
            ):
                continue
            if one.value is None:
                self.table.finalize((one.key or b"").decode(errors="replace"))
                continue
            with contextlib.suppress(InvalidValue):
                record: Routes = decode("routes", one.value)
                self.table.offer(record)

    def declare(self, *models: str, text: str = TINY, version: int = 0) -> int:
        """An operator declares `models`; returns the version."""
        return self._operate(models, text, version, withdrawn=False)

    def withdraw(self, *models: str) -> int:
        """An operator withdraws `models`; returns the version."""
        return self._operate(models, "", 0, withdrawn=True)

    def _operate(self, models: tuple[str, ...], text: str, version: int, withdrawn: bool) -> int:
        if not version:
            self._version += 1
            version = self._version
        for model in models:
            record = DeclaredService(model, text, self.now_ms, version, withdrawn)
            key, value = model.encode(), encode(record)
            headers = self._operator.headers("services", key, value)
            self.log.write("services", key, value, self.now_ms, headers)
        return version

    def models(self) -> list[str]:
        """The declared models of the controller."""
        return [service.model for service in self.declared().services]

    def is_unknown(self, model: str) -> bool:
        """Whether the gateway refuses requests for `model` without waiting."""
        routed = asyncio.run(self.table.wait_for_routes(model, float("inf")))
        return routed is False
