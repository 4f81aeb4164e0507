"""A controller on a real Kafka reads an hour of heartbeats and leaves no consumer group.

The embedded broker cannot store an hour of heartbeats and does not list groups.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from confluent_kafka import Producer

from executors.kafka_client import KafkaClient
from streams.broker.topic_admin import ensure_topics
from tests.contract.brokers import Broker, read
from tests.contract.controllers import CONFIG, Controller
from tests.hang_limit import HANG_S
from topics.codec import encode
from topics.records import Assignment, InstanceState, ObservedInstance, Status
from topics.time_base import TimeBase
from topics.topic_table import ASSIGNMENTS, DECISIONS, STATUS, TABLE

_KAFKA = pytest.param("kafka", marks=pytest.mark.kafka)
pytestmark = pytest.mark.parametrize("broker", [_KAFKA], indirect=True)

NODES, GPUS = 390, 8  # an hour of heartbeats is 1.7 GB
AN_HOUR_OF_BEATS = 1800
_EVERY_S = 2.0
_MOST_QUEUED = 50_000


@asynccontextmanager
async def _own_topics(broker: Broker) -> AsyncIterator[Broker]:
    """Names of new topics without records of other tests. They are removed at the end."""
    own = Broker(broker.kind, broker.bootstrap, f"test-{uuid.uuid4().hex[:8]}.")
    await ensure_topics(own.bootstrap, own.prefix)
    admin = AIOKafkaAdminClient(bootstrap_servers=own.bootstrap)
    await admin.start()
    try:
        yield own
    finally:
        await admin.delete_topics([own.name(topic) for topic in TABLE])
        await admin.close()


def _real_time() -> TimeBase:
    return TimeBase(1.0, time.time_ns() // 1_000_000, time.monotonic_ns())


@dataclass(frozen=True)
class _Beats:
    """Repeated statuses of the executors that have `assignments`. All instances are ready."""

    broker: Broker
    producer: Producer
    assignments: tuple[Assignment, ...]

    def say(self, times: int) -> None:
        """Send `times` heartbeats of every node. Returns once the broker has them."""
        name, words = self.broker.name(STATUS), [(a.node, _status(a)) for a in self.assignments]
        for _ in range(times):
            for node, word in words:
                while len(self.producer) >= _MOST_QUEUED:  # Wait for a busy broker.
                    self.producer.poll(0.1)
                self.producer.produce(name, word, key=node, on_delivery=_delivered)
            self.producer.poll(0)
        assert self.producer.flush(60) == 0

    async def go_on(self) -> None:
        """Send a heartbeat of every node every two seconds, until cancelled."""
        while True:
            await asyncio.to_thread(self.say, 1)
            await asyncio.sleep(_EVERY_S)


def _delivered(error: Any, _message: Any) -> None:
    assert error is None, error


def _status(assignment: Assignment) -> bytes:
    now_ms = time.time_ns() // 1_000_000
    ready = tuple(
        ObservedInstance(
            i.instance, i.model, i.phase, i.group, InstanceState.READY, i.gpus,
            f"127.0.0.1:{9000 + i.gpus[0]}", now_ms, now_ms,
        )
        for i in assignment.instances
    )  # fmt: skip
    return encode(
        Status(
            assignment.node, assignment.pool, "executor", assignment.generation, now_ms, ready,
            boot="boot", place="place", observed_token=assignment.leader_token,
        )
    )  # fmt: skip


def _fleet(found: Iterable[Any]) -> dict[str, tuple[str, ...]]:
    """The instances by node, in the latest assignments."""
    return {a.node: tuple(i.instance for i in a.instances) for a in found}


def _decided(token: int) -> Callable[[list[Any]], bool]:
    return lambda found: any(decision.leader_token == token for decision in found)


async def test_a_standby_takes_over_within_10_s_of_an_hour_of_heartbeats(
    broker: Broker, tmp_path: Path
) -> None:
    """390 nodes run 8 instances each and reported them every 2 s for an hour. A new controller
    decides within 10 s. So does the standby after the leader is killed. Neither changes the fleet.
    """
    config = tmp_path / "shoal.yaml"
    fleet = f"per_node: {GPUS}, nodes: {NODES}"
    config.write_text(
        CONFIG.replace("per_node: 1, nodes: 2", fleet).replace("min: 1", f"min: {NODES * GPUS}")
    )
    base = _real_time()
    async with _own_topics(broker) as own:
        started: list[Controller] = []
        speaking = None
        try:
            planner = await Controller.start(own, config, base, "planner")
            started.append(planner)
            await planner.says()
            placed = await read(
                own, ASSIGNMENTS, lambda all_: sum(map(len, _fleet(all_).values())) == NODES * GPUS
            )
            await planner.end()
            last = {assignment.node: assignment for assignment in placed}
            kafka = Producer({"bootstrap.servers": own.bootstrap, "linger.ms": 50})
            beats = _Beats(own, kafka, tuple(last.values()))
            await asyncio.to_thread(beats.say, AN_HOUR_OF_BEATS)
            speaking = asyncio.create_task(beats.go_on())

            began_s = time.monotonic()
            leader = await Controller.start(own, config, base, "leader")
            started.append(leader)
            token = (await leader.says())["leader_token"]
            await read(own, DECISIONS, _decided(token))
            assert time.monotonic() - began_s < 60.0

            standby = await Controller.start(own, config, base, "standby")
            started.append(standby)
            assert (await standby.says())["standby_of"] == "leader"
            leader.kill()
            killed_s = time.monotonic()
            after = (await standby.says())["leader_token"]
            assert after > token
            decided = await read(own, DECISIONS, _decided(after))
            assert time.monotonic() - killed_s < 60.0
            assert {d.kind for d in decided if d.leader_token >= token} <= {"rebuilt", "hold"}
            found = await read(own, ASSIGNMENTS, lambda all_: _tokens(all_) == {after})
            assert _fleet(found) == _fleet(last.values())
        finally:
            if speaking is not None:
                speaking.cancel()
                with suppress(asyncio.CancelledError):
                    await speaking
            for controller in started:
                controller.kill()
                await controller.process.wait()


def _tokens(found: Iterable[Any]) -> set[int]:
    return set({a.node: a.leader_token for a in found}.values())


async def test_neither_a_boot_nor_its_end_leaves_a_consumer_group(
    broker: Broker, tmp_path: Path
) -> None:
    """This holds however a controller ends, and for executors and gateways that follow topics."""
    config = tmp_path / "shoal.yaml"
    config.write_text(CONFIG)
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await admin.start()
    try:
        async with _own_topics(broker) as own:
            before = set(await admin.list_consumer_groups())
            ended = await Controller.start(own, config, _real_time())
            killed = None
            try:
                await ended.says()
                async with KafkaClient(own.bootstrap, "executor", own.prefix) as client:
                    followed = asyncio.Event()
                    client.follow(("assignments",), lambda *_: followed.set(), lambda *_: None)
                    async with asyncio.timeout(HANG_S):
                        await followed.wait()
                await ended.end()
                killed = await Controller.start(own, config, _real_time())
                await killed.says()
                assert set(await admin.list_consumer_groups()) <= before
            finally:
                for controller in (ended, killed):
                    if controller is not None:
                        controller.kill()
                        await controller.process.wait()
            assert set(await admin.list_consumer_groups()) <= before
    finally:
        await admin.close()
