"""A client retries its broker endlessly. Pauses grow within an outage and are short again in the
next one.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, ClassVar

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaConnectionError

from executors.kafka_client import KafkaClient
from topics.edge import kafka_clients as module

_real_sleep = asyncio.sleep


class FakeConsumer:
    """A consumer that fails to start, later reads once, and then loses the broker again.

    outages: number of failed starts in each outage.
    """

    outages: ClassVar[list[int]] = []
    reading = asyncio.Event()

    def __init__(self, *topics: str, **options: object) -> None:
        self._client = AIOKafkaClient(bootstrap_servers="127.0.0.1:1")

    async def start(self) -> None:
        if self.outages and self.outages[0] > 0:
            self.outages[0] -= 1
            raise KafkaConnectionError("away")

    async def stop(self) -> None:
        pass

    def assignment(self) -> set[Any]:
        return set()

    async def getmany(self, **options: object) -> dict[Any, Any]:
        self.outages.pop(0)
        if self.outages:
            raise OSError("lost")
        self.reading.set()
        await asyncio.Event().wait()
        return {}


async def test_a_second_outage_is_logged_and_retried_like_the_first(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Pauses grow to 2 s within an outage. The log names each outage once."""
    pauses: list[float] = []

    async def sleep(seconds: float, result: object = None) -> None:
        pauses.append(seconds)
        await _real_sleep(0)

    FakeConsumer.outages = [7, 2, 0]
    FakeConsumer.reading = asyncio.Event()
    monkeypatch.setattr(module, "AIOKafkaConsumer", FakeConsumer)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    kafka = KafkaClient("127.0.0.1:1", "test")
    with caplog.at_level(logging.WARNING, logger="executors"):
        kafka.follow(("routes",), lambda *_: None)
        await asyncio.wait_for(FakeConsumer.reading.wait(), 5.0)
        await kafka.__aexit__(None, None, None)
    first, later = pauses[:7], pauses[7:]
    assert first == sorted(first) and first[0] <= 0.2 and first[-1] == 2.0
    assert max(later) <= 1.0
    assert sum("no broker at" in record.message for record in caplog.records) == 2
