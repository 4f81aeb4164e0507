"""The time at which a worker writes a micro-batch, and the order in which it does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError

from streams.windows import faust_app
from streams.windows.faust_app import Worker
from tests.hang_limit import HANG_S
from topics.codec import decode, encode
from topics.demand import Demand
from topics.telemetry import Telemetry

SECOND_S = 1_700_000_000


@dataclass
class Broker:
    """One partition of `telemetry` and the records merged from it. end: end offset of the
    partition. hangs: queries get no answer. taken: set while the broker acknowledges records.
    """

    end: int = 0
    away: bool = False
    hangs: bool = False
    now_s: float = 0.0
    merged: list[Demand] = field(default_factory=list)
    acked: int = 0
    taken: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.taken.set()

    async def ends(self, partitions: Iterable[int]) -> Mapping[int, int]:
        if self.away:
            raise KafkaConnectionError("away")
        if self.hangs:
            await asyncio.Event().wait()
        return dict.fromkeys(partitions, self.end)

    async def send(self, key: bytes, value: bytes, headers: Any) -> Any:
        self.merged.append(decode("demand", value))
        return self.taken.wait()

    def event(self, offset: int, after_s: float) -> Any:
        """A record of 7 requests, appended `after_s` seconds after its second began."""
        record = Telemetry("m", "a", "b", offset, 0, 1000, 0, 7, *[0] * 9)
        message = SimpleNamespace(
            partition=0,
            offset=offset,
            value=encode(record),
            headers=(),
            timestamp=SECOND_S + after_s,
        )
        return SimpleNamespace(message=message, ack=self._ack)

    def _ack(self) -> None:
        self.acked += 1

    @property
    def arrivals(self) -> list[int]:
        return [sum(second.counts[0] for second in one.seconds) for one in self.merged]


def made() -> tuple[Broker, Worker]:
    broker = Broker()
    return broker, Worker(broker, broker.ends, monotonic_s=lambda: broker.now_s)


async def test_a_micro_batch_is_written_after_a_time_without_records() -> None:
    broker, worker = made()
    broker.end = 1
    await worker.take(broker.event(0, 0.1))
    broker.now_s = 0.2
    await worker.close_idle()
    assert broker.merged == []
    broker.now_s = 0.21
    await worker.close_idle()
    assert broker.arrivals == [7] and broker.acked == 1


async def test_a_worker_that_was_suspended_waits_for_its_unread_records() -> None:
    """The worker was suspended for longer than a pause of the gateways. One record of the
    micro-batch is unread.
    """
    broker, worker = made()
    broker.end = 2
    await worker.take(broker.event(0, 0.1))
    broker.now_s = 5.0
    await worker.close_idle()
    assert broker.merged == []
    await worker.take(broker.event(1, 0.2))
    broker.now_s = 7.0
    await worker.close_idle()
    assert broker.arrivals == [14] and broker.acked == 2


async def test_micro_batches_stay_open_while_the_broker_is_unreachable() -> None:
    broker, worker = made()
    broker.end, broker.away = 1, True
    await worker.take(broker.event(0, 0.1))
    broker.now_s = 5.0
    await worker.close_idle()
    assert broker.merged == []
    broker.away = False
    await worker.close_idle()
    assert broker.arrivals == [7]


async def test_a_broker_that_does_not_answer_delays_no_record(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(faust_app, "_ANSWER_S", 0.01)
    broker, worker = made()
    broker.end, broker.hangs = 1, True
    await worker.take(broker.event(0, 0.1))
    broker.now_s = 5.0
    async with asyncio.timeout(HANG_S):
        await worker.close_idle()
    assert broker.merged == [] and "not known: TimeoutError" in caplog.text
    broker.hangs = False
    await worker.close_idle()
    assert broker.arrivals == [7]


async def test_a_later_record_ends_the_micro_batch_before_it() -> None:
    broker, worker = made()
    broker.end = 2
    await worker.take(broker.event(0, 0.9))
    await worker.take(broker.event(1, 1.0))
    assert broker.arrivals == [7]
    assert [(one.appended_s, one.last_offset) for one in broker.merged] == [(SECOND_S, 0)]


async def test_micro_batches_of_a_partition_are_written_in_their_order() -> None:
    """The broker is slow to take the first one, and meanwhile the second one ends."""
    broker, worker = made()
    await worker.take(broker.event(0, 0.0))
    broker.taken.clear()
    first = asyncio.create_task(worker.take(broker.event(1, 1.0)))
    second = asyncio.create_task(worker.take(broker.event(2, 2.0)))
    await asyncio.sleep(0)
    assert [one.last_offset for one in broker.merged] == [0] and broker.acked == 0
    broker.taken.set()
    async with asyncio.timeout(HANG_S):
        await asyncio.gather(first, second)
    assert [one.last_offset for one in broker.merged] == [0, 1] and broker.acked == 2


async def test_a_revoked_partition_is_left_to_its_new_worker() -> None:
    broker, worker = made()
    broker.end = 1
    await worker.take(broker.event(0, 0.1))
    worker.forget({0})
    broker.now_s = 5.0
    await worker.close_idle()
    assert broker.merged == [] and broker.acked == 0
