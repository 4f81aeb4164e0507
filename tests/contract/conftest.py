"""Brokers of the contract suites: the embedded one, and a real Kafka if one is configured.

SHOAL_TEST_KAFKA=HOST:PORT names the real one (`make kafka` runs one). Each module gets its own
topics under its own prefix, which are removed at the end.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient

from streams.broker.topic_admin import ensure_topics
from tests.contract.brokers import Broker, new_producer
from tests.hang_limit import HANG_S
from topics.topic_table import TABLE


def _embedded(prefix: str) -> Iterator[Broker]:
    process = subprocess.Popen(
        [sys.executable, "-m", "streams.broker", "--prefix", prefix], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield Broker("embedded", json.loads(process.stdout.readline())["bootstrap"], prefix)
    finally:
        process.terminate()
        assert process.wait(HANG_S) == 0


def _real(bootstrap: str, prefix: str) -> Iterator[Broker]:
    asyncio.run(ensure_topics(bootstrap, prefix))
    yield Broker("kafka", bootstrap, prefix)

    async def remove() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        await admin.delete_topics([topic.wire_name(prefix) for topic in TABLE])
        await admin.close()

    asyncio.run(remove())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests of features that the embedded broker lacks.

    They must fail on it, for the reason that they name.
    """
    for item in items:
        gap = item.get_closest_marker("embedded_gap")
        if gap and item.callspec.params.get("broker") == "embedded":  # type: ignore[attr-defined]
            item.add_marker(pytest.mark.xfail(strict=True, reason=gap.args[0]))


@pytest.fixture(scope="module", params=["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    prefix = f"test-{uuid.uuid4().hex[:8]}."
    if request.param == "embedded":
        yield from _embedded(prefix)
        return
    bootstrap = os.environ.get("SHOAL_TEST_KAFKA")
    if not bootstrap:
        pytest.skip("no real Kafka: run `make kafka` and set SHOAL_TEST_KAFKA=HOST:PORT")
    yield from _real(bootstrap, prefix)


@pytest.fixture
async def producer(broker: Broker) -> AsyncIterator[AIOKafkaProducer]:
    """A started producer."""
    made = await new_producer(broker)
    yield made
    await made.stop()
