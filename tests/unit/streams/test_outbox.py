"""The outbox: order, coalescing, retries, and silence of a controller that does not lead."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError, KafkaTimeoutError, MessageSizeTooLargeError

from streams.controller import leader_producer
from streams.controller import outbox as module
from streams.controller.leader_producer import Fenced, LeaderProducer
from streams.controller.outbox import Outbox
from tests.hang_limit import HANG_S
from topics.codec import decode
from topics.records import Assignment, Decision, Routes
from topics.topic_table import short_name


class FakeProducer:
    """A producer that stores sent records. `away`: every send fails. `held`: every send waits."""

    def __init__(self, transactional: bool = False) -> None:
        self.sent: list[Any] = []
        self.away = 0
        self.calls = 0
        self.transactional = transactional
        self.opened = 0
        self.fenced = False

    async def open(self) -> None:
        self.opened += 1

    @contextlib.asynccontextmanager
    async def batch(self) -> AsyncIterator[None]:
        before = list(self.sent)
        if self.fenced:
            raise Fenced("fenced")
        try:
            yield
        except BaseException:
            self.sent = before
            raise

    async def send(
        self, topic: str, value: bytes, key: bytes | None, headers: Any
    ) -> asyncio.Future[Any]:
        self.calls += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.away:
            self.away -= 1
            future.set_exception(KafkaConnectionError("away"))
        else:
            self.sent.append(decode(short_name(topic), value))
            future.set_result(None)
        return future


def assignment(node: str, generation: int) -> Assignment:
    return Assignment(node, "p", generation, 1, 0)


def decision(number: int) -> Decision:
    return Decision(number, 1, "m", "hold", 0, False, "")


async def passes(times: int = 50) -> None:
    """Run all ready tasks; pauses of the outbox take no time in these tests."""
    for _ in range(times):
        await asyncio.sleep(0)


@pytest.fixture
async def running(
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Callable[[Outbox], None]]:
    monkeypatch.setattr(module, "_PAUSE_S", (0.0,))
    tasks = []
    yield lambda outbox: tasks.append(asyncio.create_task(outbox.run()))
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_records_go_out_in_the_order_they_came(running: Any) -> None:
    """The order holds across topics. A decision is sent before the assignment
    that follows from it.
    """
    producer = FakeProducer()
    outbox = Outbox(producer)
    records = [decision(1), assignment("a", 1), decision(2), assignment("b", 1)]
    for record in records:
        outbox.put(record)
    running(outbox)
    await outbox.flushed()
    assert producer.sent == records
    assert outbox.sent == 4


async def test_only_the_latest_desired_state_and_every_decision_are_sent(running: Any) -> None:
    """A superseded desired state is not sent."""
    producer = FakeProducer()
    outbox = Outbox(producer)
    for generation in range(1, 6):
        outbox.put(assignment("a", generation))
        outbox.put(Routes("m", generation, 1, 0, 1.0, 1.0))
        outbox.put(decision(generation))
    running(outbox)
    await outbox.flushed()
    assert [r for r in producer.sent if isinstance(r, Assignment)] == [assignment("a", 5)]
    assert [r.generation for r in producer.sent if isinstance(r, Routes)] == [5]
    assert [r.number for r in producer.sent if isinstance(r, Decision)] == [1, 2, 3, 4, 5]


async def test_no_record_is_lost_while_the_broker_is_unreachable(running: Any) -> None:
    """Failed sends are repeated until the records arrive."""
    producer = FakeProducer()
    producer.away = 7
    outbox = Outbox(producer)
    records = [decision(number) for number in range(3)]
    for record in records:
        outbox.put(record)
    running(outbox)
    await outbox.flushed()
    assert sorted(r.number for r in producer.sent) == [0, 1, 2]
    assert producer.calls == 10


async def test_a_controller_that_does_not_lead_writes_no_record(running: Any) -> None:
    """The outbox checks the lease before every batch. Waiting records are sent once the lease is
    valid again, for example after an outage. At the end of the term they are dropped.
    """
    producer, leads = FakeProducer(), False
    outbox = Outbox(producer, leads=lambda: leads)
    outbox.put(assignment("a", 1))
    outbox.put(decision(1))
    running(outbox)
    await passes()
    assert producer.sent == []
    leads = True
    await outbox.flushed()
    assert len(producer.sent) == 2
    outbox.put(decision(2))
    outbox.clear()
    await outbox.flushed()
    assert (len(producer.sent), outbox.dropped) == (2, 1)


async def test_the_number_of_waiting_records_is_bounded(
    monkeypatch: pytest.MonkeyPatch, running: Any
) -> None:
    """A broker that never returns does not exhaust the memory. The oldest records are dropped
    first.
    """
    monkeypatch.setattr(module, "MAX_WAITING", 3)
    producer = FakeProducer()
    outbox = Outbox(producer)
    for number in range(5):
        outbox.put(decision(number))
    assert outbox.dropped == 2
    running(outbox)
    await outbox.flushed()
    assert [r.number for r in producer.sent] == [2, 3, 4]


async def test_an_oversized_record_does_not_delay_the_others(running: Any) -> None:
    """The record is refused before it is queued, or by the broker's answer."""

    class Picky(FakeProducer):
        async def send(
            self, topic: str, value: bytes, key: bytes | None, headers: Any
        ) -> asyncio.Future[Any]:
            number = decode(short_name(topic), value).number
            if number == 2:
                raise MessageSizeTooLargeError("2")
            future = await super().send(topic, value, key, headers)
            if number == 4:
                self.sent.pop()
                future = asyncio.get_running_loop().create_future()
                future.set_exception(MessageSizeTooLargeError("4"))
            return future

    producer = Picky()
    outbox = Outbox(producer)
    for number in range(1, 6):
        outbox.put(decision(number))
    running(outbox)
    await asyncio.wait_for(outbox.flushed(), HANG_S)
    assert [r.number for r in producer.sent] == [1, 3, 5]
    assert (outbox.sent, outbox.dropped) == (3, 2)


async def test_records_before_a_failed_one_are_not_sent_again(
    running: Any,
) -> None:
    """A time-out occurs in the middle of a batch. Only the records after it are sent again."""

    class Stumbling(FakeProducer):
        async def send(
            self, topic: str, value: bytes, key: bytes | None, headers: Any
        ) -> asyncio.Future[Any]:
            if self.calls == 2:
                self.calls += 1
                raise KafkaTimeoutError
            return await super().send(topic, value, key, headers)

    producer = Stumbling()
    outbox = Outbox(producer)
    for number in range(1, 5):
        outbox.put(decision(number))
    running(outbox)
    await asyncio.wait_for(outbox.flushed(), HANG_S)
    assert [r.number for r in producer.sent] == [1, 2, 3, 4]


async def test_a_failed_transaction_is_repeated_as_a_whole(
    running: Callable[[Outbox], None],
) -> None:
    """Readers never see half of a plan."""
    producer = FakeProducer(transactional=True)
    producer.away = 2
    outbox = Outbox(producer)
    for number in range(4):
        outbox.put(decision(number))
    running(outbox)
    await outbox.flushed()
    assert [d.number for d in producer.sent] == [0, 1, 2, 3]
    assert producer.opened == 1
    assert outbox.sent == 4


async def test_a_fenced_controller_stops_and_opens_no_producer() -> None:
    """A new producer would fence the leader."""
    producer = FakeProducer(transactional=True)
    producer.fenced = True
    outbox = Outbox(producer)
    outbox.put(decision(1))
    with pytest.raises(Fenced):
        await outbox.run()
    assert producer.opened == 0


async def test_a_controller_without_a_lease_opens_no_producer_after_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lease expired during the outage, so another controller may lead."""
    monkeypatch.setattr(module, "_PAUSE_S", (0.0,))
    producer = FakeProducer(transactional=True)
    producer.away = 1
    asked = iter([True])
    outbox = Outbox(producer, leads=lambda: next(asked, False))
    outbox.put(decision(1))
    task = asyncio.create_task(outbox.run())
    await passes()
    task.cancel()
    assert (producer.opened, producer.sent, producer.away) == (0, [], 0)


async def test_a_producer_is_reopened_once_the_broker_returns(
    running: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outage does not end the term."""
    opened: list[FakeClient] = []

    class FakeClient:
        """Replaces aiokafka's producer. The first one loses its broker, the second finds none."""

        async def start(self) -> None:
            opened.append(self)
            if len(opened) == 2:
                raise KafkaConnectionError("away")

        async def stop(self) -> None:
            pass

        @contextlib.asynccontextmanager
        async def transaction(self) -> AsyncIterator[None]:
            yield

        async def send(self, *_: Any, **__: Any) -> asyncio.Future[Any]:
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            if len(opened) == 1:
                future.set_exception(KafkaConnectionError("away"))
            else:
                future.set_result(None)
            return future

    monkeypatch.setattr(leader_producer, "new_producer", lambda *_, **__: FakeClient())
    producer = LeaderProducer("b:1", "ctl", "x.", transactional=True)
    await producer.open()
    outbox = Outbox(producer)
    running(outbox)
    outbox.put(decision(1))
    async with asyncio.timeout(HANG_S):
        await outbox.flushed()
    assert len(opened) == 3 and outbox.sent == 1
