"""Work of operators that must not be noticed: keys are rotated, a topic is deleted."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from aiokafka import TopicPartition

from loadtests.chaos.stack import CONTROLLERS, EXECUTORS, GATEWAYS, MODELS
from topics.codec import encode
from topics.controls import Control
from topics.edge.kafka_clients import admin, consumer
from topics.keys import CLUSTER_KEY
from topics.topic_table import ASSIGNMENTS, CONTROLS, LEDGER, ROUTES, Topic

if TYPE_CHECKING:
    from loadtests.chaos.run import Chaos

_RESTORED_S = 30.0
_READ_S = 3.0
_POLL_S = 0.2


async def rotate_keys(chaos: Chaos, rng: random.Random) -> None:
    """Rotate the cluster's key as docs/how-to/executors.md says; every process restarts three
    times, one after the other."""
    chaos.hit = "every process"
    stack, old, new = chaos.stack, chaos.stack.key, secrets.token_hex(32)
    for step, key in enumerate((f"{old}\n{new}", f"{new}\n{old}", new)):
        if step == 2:
            await _sign_again(chaos)
        stack.use_key(key)
        for name in (*CONTROLLERS, *EXECUTORS, *GATEWAYS):
            since_s = time.monotonic()
            await stack.restart(name)
            chaos.load.excused.append((name, since_s, time.monotonic()))


async def _sign_again(chaos: Chaos) -> None:
    """Run `shoal keys sign`."""
    stack = chaos.stack
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "streams.cli.entry", "keys", "sign",
        "--broker", stack.bootstrap, "--prefix", stack.prefix,
        env={**os.environ, CLUSTER_KEY: stack.key},
        stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    if await process.wait():
        chaos.complaints.append("`shoal keys sign` failed")


async def delete_topic(chaos: Chaos, rng: random.Random) -> None:
    """Delete a topic that the leader keeps, and wait until it has its keys again."""
    topic = rng.choice((ASSIGNMENTS, ROUTES, LEDGER, CONTROLS))
    chaos.hit = topic.name
    now_ms = chaos.stack.base.now_ms(time.monotonic_ns())
    said = Control(MODELS[0], "pause", False, "chaos", "a test", now_ms)
    where = CONTROLS.wire_name(chaos.stack.prefix)
    await chaos.stack.write([(where, said.key.encode(), encode(said))])
    await asyncio.sleep(_READ_S)  # the leader reads it
    before = await _keys(chaos, topic)
    client = admin(chaos.stack.bootstrap, "chaos")
    await client.start()
    try:
        await client.delete_topics([topic.wire_name(chaos.stack.prefix)])
    finally:
        await client.close()
    # Kafka answers before the topic is gone. It may be back before this notices.
    with suppress(TimeoutError):
        async with asyncio.timeout(_READ_S):
            while await _keys(chaos, topic):
                await asyncio.sleep(_POLL_S)
    began_s, stalled_s, lost = time.monotonic(), chaos.stack.waited_s(), before
    while lost and time.monotonic() - began_s < _RESTORED_S + chaos.stack.waited_s() - stalled_s:
        await asyncio.sleep(_POLL_S)
        lost = before - await _keys(chaos, topic)
    if lost:
        chaos.complaints.append(f"{topic.name} lost {sorted(lost)[:3]}")


async def _keys(chaos: Chaos, topic: Topic) -> set[bytes]:
    """The keys with a value on the topic, except arrivals, which come with time; none while it is
    absent."""
    name, last = topic.wire_name(chaos.stack.prefix), dict[bytes, bool]()
    reading = consumer(chaos.stack.bootstrap, "chaos-keys", isolation_level="read_committed")
    await reading.start()
    try:
        if name not in await reading.topics():
            return set()
        parts = [TopicPartition(name, number) for number in range(topic.partitions)]
        reading.assign(parts)
        await reading.seek_to_beginning(*parts)
        ends = await reading.end_offsets(parts)
        while any([await reading.position(part) < end for part, end in ends.items()]):
            for messages in (await reading.getmany(timeout_ms=200)).values():
                last.update({m.key or b"": m.value is not None for m in messages})
    finally:
        await reading.stop()
    return {key for key, kept in last.items() if kept and not key.startswith(b"arrivals/")}
