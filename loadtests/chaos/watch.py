"""Observer of a run: records every record of the topics, and the stalls of the host.

It reads the broker directly, not through a relay, and writes nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from autoscaler.estimate.windows import TelemetryWindows
from loadtests.chaos.stack import Stack
from loadtests.extreme import WRITER
from topics.checks import InvalidValue
from topics.codec import decode
from topics.edge.kafka_clients import consumer
from topics.records import Assignment, DeadLetter, Decision, Routes, Status, Telemetry
from topics.topic_table import ASSIGNMENTS, ROUTES, TABLE, short_name


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
        except InvalidValue:
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
