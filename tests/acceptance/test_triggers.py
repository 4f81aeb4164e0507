"""Triggers of a full plan in real processes at speed 1: each requests a plan within two ticks.

One run is enough for all triggers, because most of its time is the silence time-out of a node.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from streams.files.keyfiles import operator_keys
from tests.acceptance.conftest import Start
from tests.acceptance.shoal_up import ENGINE, Proc, Run
from tests.hang_limit import HANG_S
from topics.codec import decode, encode
from topics.macs import Signer
from topics.records import DeclaredService, InstanceState, ObservedInstance, Price, Status
from topics.topic_table import PREFIX, STATUS, key_of, topic_of

CONFIG = """mode: act
regions:
  eu:
    l4: {gpu: L4, per_node: 1, max: 4, price: 0.85}
    l40s: {gpu: L40S, per_node: 1, max: 2, price: 1.9}
  us:
    l4: {gpu: L4, per_node: 1, nodes: 1, owned: true}
models:
  mini:
    source: openai/gpt-oss-20b
    slo: {ttft: 2s, tpot: 80ms}
    workload: {req_per_s: 1, input: 200, output: 60}
    regions: [eu]
    max_len: 16384
    min: 2
"""
CHANGED = """
source: openai/gpt-oss-20b
slo: {ttft: 1500ms, tpot: 70ms}
workload: {req_per_s: 1, input: 200, output: 60}
regions: [eu]
max_len: 16384
min: 2
"""
L4 = "eu/l4/on-demand"
SILENT_S = 45.0  # for a node without instances: three times node_silent
SOON_S = 2.5  # two ticks, and half a second to read the record
ASKED = re.compile(r"^(\S+)Z INFO \S+: full plan \d+ of [^:]*: (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Delays:
    """Seconds from a record to the plan that it triggers, by trigger."""

    price_s: float
    service_s: float
    launch_s: float
    node_s: float


@pytest.fixture(scope="module")
def delays(start: Start) -> Iterator[Delays]:
    """The delays of one run."""
    run = start("--speed", "1", config=CONFIG)
    run.line(r"mini \+\S+ \S+: declared workload of 1.0 req/s")
    (controller,) = run.processes("streams.controller")
    bootstrap = after(controller, "--broker")
    executors = {after(p, "--config").rsplit("-", 1)[1]: p for p in run.processes("executors.node")}
    there = statuses(bootstrap, lambda found: any(s.pool.startswith("us/") for s in found))
    lost = next(status.node for status in there if status.pool.startswith("us/"))
    os.kill(executors["us.json"].pid, signal.SIGSTOP)
    try:
        yield Delays(
            price_s=price(run, bootstrap),
            service_s=service(run, bootstrap),
            launch_s=failed_launch(run, bootstrap),
            node_s=lost_node(run, bootstrap, lost),
        )
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(executors["us.json"].pid, signal.SIGCONT)


def test_a_tenfold_price(delays: Delays) -> None:
    assert delays.price_s <= SOON_S


def test_a_changed_service(delays: Delays) -> None:
    assert delays.service_s <= SOON_S


def test_a_launch_that_failed(delays: Delays) -> None:
    assert delays.launch_s <= SOON_S


def test_a_lost_node(delays: Delays) -> None:
    """The delay counts from the end of the silence time-out."""
    assert 0.0 <= delays.node_s <= SOON_S


def price(run: Run, bootstrap: str) -> float:
    written_s = write(bootstrap, Price(L4, 8.5, int(time.time() * 1000)))
    delay_s = plan_request_s(run, f"{L4} now 8.50 USD/h (was 0.85)") - written_s
    run.line(rf"mini .*: .*{L4} now 8\.50 USD/h")
    return delay_s


def service(run: Run, bootstrap: str) -> float:
    written_s = write(bootstrap, DeclaredService("mini", CHANGED, int(time.time() * 1000)))
    return plan_request_s(run, "mini was changed") - written_s


def failed_launch(run: Run, bootstrap: str) -> float:
    """The delay of the trigger for an engine that dies at each start.

    It is given up after the third start.
    """
    give_up = time.monotonic() + HANG_S
    chosen: list[str] = []

    def over(found: list[Status]) -> bool:
        assert time.monotonic() < give_up, f"{chosen} was not given up"
        latest = {i.instance: i for s in sorted(found, key=lambda s: s.at_ms) for i in s.instances}
        if not chosen:
            starting = [i for i in latest.values() if i.state is InstanceState.STARTING]
            chosen.extend(i.instance for i in starting[-1:] if i.endpoint)
            return False
        victim = latest[chosen[0]]
        port = victim.endpoint.rpartition(":")[2]
        for proc in run.processes(ENGINE):
            if port and proc.option("--port") == port:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(proc.pid, signal.SIGKILL)
        return victim.state is InstanceState.FAILED

    found = statuses(bootstrap, over)
    first = min((s for s in found if failed(s, chosen[0])), key=lambda s: s.at_ms)
    return plan_request_s(run, f"launch failed on {first.node}") - first.at_ms / 1000.0


def lost_node(run: Run, bootstrap: str, node: str) -> float:
    seen = statuses(bootstrap, lambda found: any(status.node == node for status in found))
    last_s = max(status.at_ms for status in seen if status.node == node) / 1000.0
    return plan_request_s(run, f"{node} lost") - last_s - SILENT_S


def failed(status: Status, instance: str) -> bool:
    def is_it(seen: ObservedInstance) -> bool:
        return seen.instance == instance and seen.state is InstanceState.FAILED

    return any(map(is_it, status.instances))


def after(proc: Proc, option: str) -> str:
    """The value of an option, which is the argument after it."""
    return proc.argv[proc.argv.index(option) + 1]


def plan_request_s(run: Run, words: str) -> float:
    """The time (s since the epoch) of the request for a full plan with `words`
    among its triggers.
    """

    def matching_plan_s() -> float | None:
        (path,) = run.temporary.glob("shoal-up-*/controller.log")
        for at, why in ASKED.findall(path.read_text()):
            if words in why:
                return dt.datetime.fromisoformat(f"{at}+00:00").timestamp()
        return None

    at_s: float = run.until(matching_plan_s, f"full plan because {words}")
    return at_s


def write(bootstrap: str, record: object) -> float:
    """Write a record, signed like a command of this user. Returns the broker's time (s since the
    epoch).
    """
    signer = Signer(operator_keys(bootstrap, PREFIX), lambda: time.time_ns() // 1_000_000)

    async def send() -> float:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all")
        await producer.start()
        try:
            topic, key, value = topic_of(record), key_of(record), encode(record)
            headers = signer.headers(topic.name, key, value)
            await producer.send_and_wait(topic.wire_name(), value, key=key, headers=headers)
            return time.time()
        finally:
            await producer.stop()

    return asyncio.run(send())


def statuses(bootstrap: str, enough: Callable[[list[Status]], bool]) -> list[Status]:
    """All statuses since the beginning, once `enough` accepts them."""

    async def read() -> list[Status]:
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
        await consumer.start()
        try:
            parts = [TopicPartition(STATUS.wire_name(), n) for n in range(STATUS.partitions)]
            consumer.assign(parts)
            ends = await consumer.end_offsets(parts)
            found: list[Status] = []
            async with asyncio.timeout(HANG_S):
                while True:
                    for messages in (await consumer.getmany(timeout_ms=100)).values():
                        found += [decode(STATUS.name, message.value) for message in messages]
                    behind = [p for p in parts if await consumer.position(p) < ends[p]]
                    if not behind and enough(found):
                        return found
        finally:
            await consumer.stop()

    return asyncio.run(read())
