"""Observer of a run: records every record of the topics, every request, and the stalls of the host.

It reads the broker directly, not through a relay, and writes nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from aiohttp import ClientError, ClientSession, ClientTimeout
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from autoscaler.estimate.windows import TelemetryWindows
from loadtests.chaos.stack import GATEWAYS, MODELS, Stack
from loadtests.extreme import WRITER
from streams.broker.kafka_clients import consumer
from topics.checks import InvalidRecord
from topics.codec import decode
from topics.records import Assignment, DeadLetter, Decision, Routes, Status, Telemetry
from topics.topic_table import ASSIGNMENTS, ROUTES, TABLE, short_name

RATE = 2.0
_BODY_TOKENS = 32


@dataclass(slots=True)
class Topics:
    """Records of a run. statuses, assignments, routes: the last record of each key. heard:
    monotonic seconds of each node's last status. windows: all telemetry, read by a reader that
    never failed. numbers: number of times that each (leader token, decision number) was read.
    launches: start times of each instance's processes.
    """

    statuses: dict[str, Status] = field(default_factory=dict)
    heard: dict[str, float] = field(default_factory=dict)
    assignments: dict[str, Assignment] = field(default_factory=dict)
    routes: dict[str, Routes] = field(default_factory=dict)
    decisions: list[tuple[float, Decision]] = field(default_factory=list)
    letters: list[DeadLetter] = field(default_factory=list)
    windows: TelemetryWindows = field(default_factory=lambda: TelemetryWindows(3600))
    numbers: Counter[tuple[int, int]] = field(default_factory=Counter)
    launches: dict[str, set[int]] = field(default_factory=dict)

    async def follow(self, stack: Stack, embedded: bool) -> None:
        """Read records until cancelled."""
        known: dict[TopicPartition, int] = {}
        while True:
            reading = consumer(
                stack.bootstrap, "onlooker", fetch_max_wait_ms=100,
                isolation_level="read_uncommitted" if embedded else "read_committed",
            )  # fmt: skip
            try:
                await reading.start()
                parts = [
                    TopicPartition(topic.wire_name(stack.prefix), number)
                    for topic in TABLE
                    for number in range(topic.partitions)
                ]
                reading.assign(parts)
                for part in parts:
                    reading.seek(part, known.get(part, 0))
                while True:
                    for part, messages in (await reading.getmany(timeout_ms=500)).items():
                        for message in messages:
                            self._take(short_name(part.topic, stack.prefix), message)
                        known[part] = messages[-1].offset + 1
            except (KafkaError, OSError):
                await asyncio.sleep(0.5)
            finally:
                await reading.stop()

    def _take(self, name: str, message: Any) -> None:
        if message.value is None:  # a tombstone
            kept = {ASSIGNMENTS.name: self.assignments, ROUTES.name: self.routes}.get(name)
            if kept is not None:
                kept.pop((message.key or b"").decode(errors="replace"), None)
            return
        try:
            record = decode(name, message.value)
        except InvalidRecord:
            return
        if isinstance(record, Status) and record.executor != WRITER:
            self.statuses[record.node], self.heard[record.node] = record, time.monotonic()
            for seen in record.instances:
                if seen.launched_ms:
                    self.launches.setdefault(seen.instance, set()).add(seen.launched_ms)
        elif isinstance(record, Assignment):
            self.assignments[record.node] = record
        elif isinstance(record, Routes):
            self.routes[record.model] = record
        elif isinstance(record, Decision):
            self.decisions.append((time.monotonic(), record))
            self.numbers[record.leader_token, record.number] += 1
        elif isinstance(record, DeadLetter):
            self.letters.append(record)
        elif isinstance(record, Telemetry) and record.gateway != WRITER:
            self.windows.advance(record.end_ms)
            self.windows.add(record, record.end_ms)


@dataclass(frozen=True, slots=True)
class Request:
    """One request of the load. status: 0 without an answer."""

    model: str
    gateway: str
    sent_s: float
    took_s: float
    status: int
    why: str = ""


@dataclass(slots=True)
class Load:
    """A steady load on both gateways. Requests do not wait for answers. factor: multiplies the
    rate, for bursts. excused: (gateway, since, until) of restarts on purpose.
    """

    requests: list[Request] = field(default_factory=list)
    factor: float = 1.0
    excused: list[tuple[str, float, float]] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self, stack: Stack) -> None:
        """Send requests until cancelled. A late sender catches up, so the mean rate is kept."""
        async with ClientSession(timeout=ClientTimeout(total=60.0)) as session:
            due_s, turn = time.monotonic(), 0
            while True:
                for model in MODELS:
                    gateway = GATEWAYS[turn // 2 % 2]
                    task = asyncio.create_task(self._ask(session, stack, model, gateway))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
                    turn += 1
                due_s += 1.0 / (RATE * self.factor)
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))

    async def _ask(self, session: ClientSession, stack: Stack, model: str, gateway: str) -> None:
        url = f"http://127.0.0.1:{stack.ports[gateway]}/v1/completions"
        body = {"model": model, "prompt": "word " * _BODY_TOKENS, "max_tokens": 8}
        sent_s, status, why = time.monotonic(), 0, ""
        try:
            async with session.post(url, json=body) as answer:
                text = await answer.text()
                status, why = answer.status, text[:200] if answer.status != 200 else ""
        except (ClientError, OSError, TimeoutError) as error:
            why = type(error).__name__
        took_s = time.monotonic() - sent_s
        self.requests.append(Request(model, gateway, sent_s, took_s, status, why))

    def failed(self, since_s: float, until_s: float) -> list[Request]:
        """Requests sent between `since_s` and `until_s` without a successful answer, except those
        to a gateway that was restarted meanwhile."""
        return [
            r
            for r in self.requests
            if since_s <= r.sent_s < until_s and r.status != 200 and not self._excused(r)
        ]

    def _excused(self, request: Request) -> bool:
        return any(
            name == request.gateway and request.sent_s <= until_s
            and request.sent_s + request.took_s >= since_s
            for name, since_s, until_s in self.excused
        )  # fmt: skip


@dataclass(slots=True)
class Host:
    """The stall of the host. late_s: sum of the delays with which a sleeping task of this process
    woke up.
    """

    late_s: float = 0.0

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            due_s = time.monotonic() + 0.05
            await asyncio.sleep(0.05)
            self.late_s += max(0.0, time.monotonic() - due_s - 0.005)
