"""Executors and gateways read tombstones and the limits of leader tokens."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator

import pytest

from executors.kafka_client import KafkaClient
from tests.hang_limit import HANG_S
from tests.integration.gateway.gateway_bench import until
from topics.records import Leadership, Routes


@pytest.fixture
async def bootstrap() -> AsyncIterator[str]:
    """The address of an embedded broker."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "streams.broker", stdout=PIPE, stderr=DEVNULL
    )
    assert process.stdout is not None
    yield json.loads(await asyncio.wait_for(process.stdout.readline(), HANG_S))["bootstrap"]
    process.kill()
    await process.wait()


async def test_a_token_is_bounded_by_the_highest_claim(bootstrap: str) -> None:
    """While no record has a token, the end of the topic limits it. Records of a standby have none.
    A renewal confirms its own token.
    """
    changes: list[int | None] = []
    async with KafkaClient(bootstrap, "test") as kafka:
        await until(lambda: kafka.connected)
        assert kafka.highest_token is None
        for _ in range(3):
            await kafka.publish("leadership", "c", Leadership("c", "x", "standby", 0))
        kafka.follow_leadership(lambda: changes.append(kafka.highest_token))
        await until(lambda: kafka.highest_token == 3)
        await kafka.publish("leadership", "c", Leadership("c", "x", "standby", 0))
        await kafka.publish("leadership", "claim", Leadership("c", "x", "claim", 0))
        await until(lambda: kafka.highest_token == 5)
        await kafka.publish("leadership", "c", Leadership("c", "x", "standby", 0))
        await kafka.publish("leadership", "claim", Leadership("d", "y", "claim", 0))
        await until(lambda: kafka.highest_token == 7)
        await kafka.publish("leadership", "d", Leadership("d", "y", "renewal", 0, token=9))
        await until(lambda: kafka.highest_token == 9)
    assert changes == [3, 5, 7, 9]


async def test_tombstones_name_their_key(bootstrap: str) -> None:
    seen: list[tuple[str, str, bool]] = []
    async with KafkaClient(bootstrap, "test") as kafka:
        await until(lambda: kafka.connected)
        await kafka.publish("routes", "chat", Routes("chat", 1, 1, 0, 1.0, 1.0))
        assert kafka._producer is not None
        await kafka._producer.send_and_wait("shoal.routes", None, key=b"chat")
        kafka.follow(
            ("routes",),
            lambda topic, key, _record, _ms: seen.append((topic, key, True)),
            lambda topic, key: seen.append((topic, key, False)),
        )
        await until(lambda: len(seen) == 2)
    assert seen == [("routes", "chat", True), ("routes", "chat", False)]
