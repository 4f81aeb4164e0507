"""Time from a burst to the assignment that answers it, through the real processes.

    python -m loadtests.burst [--bursts N] [--broker HOST:PORT] [--json OUT]

A burst raises the rate of one model from 1 to 10 requests/s. Four models share a stack, and each
has its burst once. Then a new stack starts. Three times are measured on the broker's clock: the
burst's first request, the last telemetry record of that model before its assignment, and the
assignment that adds an instance. The embedded broker and the Kafka of --broker both use this
machine's clock.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import secrets
import sys
import tempfile
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector
from aiokafka import TopicPartition

from loadtests.chaos.stack import Stack
from streams.broker.broker_reach import BrokerUnreachable
from streams.broker.child_broker import own_broker
from streams.broker.topic_admin import TopicsUnusable, ensure_topics
from streams.files.user_errors import UserError
from streams.tools.up.host_resources import remove_topics
from topics.checks import InvalidValue
from topics.codec import decode
from topics.edge.kafka_clients import consumer
from topics.topic_table import ASSIGNMENTS, STATUS, TELEMETRY, short_name

MODELS = ("m1", "m2", "m3", "m4")
_BASE, _BURST = 1.0, 10.0
_QUIET_S, _BETWEEN_S, _GIVE_UP_S = 30.0, 5.0, 30.0
_TOKENS = 640  # one instance serves far less than 10 requests/s of this length
_CONFIG = (
    """
mode: act
defaults: {percentile: 95, utilization: 0.85}
policy: {start_timeout: 2m}
regions:
  east: {l4: {gpu: L4, per_node: 8, max: 4, price: 6.8}}
models:
"""
    + "".join(
        f"  {name}: {{source: meta-llama/Llama-3.1-8B-Instruct, engine: fp8, min: 1, max_len: 2048,"
        f" slo: {{ttft: 1s, tpot: 40ms}},"
        f" workload: {{req_per_s: 1, input: 32, output: {_TOKENS}}}}}\n"
        for name in MODELS
    )
    + "engines:\n  fp8: {args: [--quantization=fp8]}\n"
)


@dataclass(frozen=True, slots=True)
class Burst:
    """Times in ms from the first request, and from the last telemetry record, to the assignment."""

    model: str
    first_to_assignment_ms: int
    record_to_assignment_ms: int


@dataclass(slots=True)
class Watch:
    """Append times in ms by model: of telemetry records, and of assignments with their number of
    instances.
    """

    telemetry: dict[str, list[int]] = field(default_factory=dict)
    ordered: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    ready: set[str] = field(default_factory=set)
    _desired: dict[str, dict[str, int]] = field(default_factory=dict)

    async def follow(self, stack: Stack) -> None:
        """Read records until cancelled."""
        reading = consumer(
            stack.bootstrap, "burst", fetch_max_wait_ms=50, isolation_level="read_committed"
        )
        await reading.start()
        try:
            parts = [
                TopicPartition(topic.wire_name(stack.prefix), number)
                for topic in (TELEMETRY, ASSIGNMENTS, STATUS)
                for number in range(topic.partitions)
            ]
            reading.assign(parts)
            await reading.seek_to_beginning(*parts)
            while True:
                for part, messages in (await reading.getmany(timeout_ms=200)).items():
                    for message in messages:
                        self._take(short_name(part.topic, stack.prefix), message)
        finally:
            await reading.stop()

    def _take(self, name: str, message: Any) -> None:
        with suppress(InvalidValue):
            record = decode(name, message.value or b"")
            if name == TELEMETRY.name:
                self.telemetry.setdefault(record.model, []).append(message.timestamp)
            elif name == STATUS.name:
                self.ready |= {i.model for i in record.instances if i.state == "ready"}
            else:
                counts: dict[str, int] = {}
                for one in record.instances:
                    counts[one.model] = counts.get(one.model, 0) + 1
                self._desired[record.node] = counts
                for model in MODELS:
                    total = sum(c.get(model, 0) for c in self._desired.values())
                    self.ordered.setdefault(model, []).append((message.timestamp, total))

    def answer(self, model: str, since_ms: int) -> Burst | None:
        """The burst of `model` that began at `since_ms`. None until the assignment for the burst is
        read.
        """
        orders = self.ordered.get(model, [])
        before = max((total for at, total in orders if at <= since_ms), default=0)
        at_ms = next((at for at, total in orders if at > since_ms and total > before), 0)
        records = [at for at in self.telemetry.get(model, []) if since_ms < at <= at_ms]
        if not at_ms or not records:
            return None
        return Burst(model, at_ms - since_ms, at_ms - records[-1])


async def one_round(bootstrap: str, prefix: str, folder: Path) -> list[Burst | None]:
    """Start a stack and give each of its models a burst.

    The result is None for a model without an assignment in time.
    """
    await ensure_topics(bootstrap, prefix)
    stack = Stack(
        folder, bootstrap, prefix, _CONFIG, ("controller-a",), ("executor-east",), ("gateway-a",)
    )
    watch, rates = Watch(), dict.fromkeys(MODELS, _BASE)
    tasks: list[asyncio.Task[None]] = []
    try:
        await stack.open()
        tasks.append(asyncio.create_task(watch.follow(stack)))
        async with asyncio.timeout(120.0):
            while watch.ready != set(MODELS):
                await asyncio.sleep(0.2)
        # Answers take longer than a burst. With aiohttp's 100 connections for all models together,
        # the later bursts would wait in this client.
        connector, timeout = TCPConnector(limit=0), ClientTimeout(total=120.0)
        async with ClientSession(connector=connector, timeout=timeout) as session:
            tasks += [asyncio.create_task(_load(session, stack, m, rates)) for m in MODELS]
            await asyncio.sleep(_QUIET_S)
            found = []
            for model in MODELS:
                rates[model] = _BURST
                since_ms = time.time_ns() // 1_000_000
                found.append(await _answered(watch, model, since_ms))
                rates[model] = _BASE
                await asyncio.sleep(_BETWEEN_S)
            return found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await stack.close()
        await remove_topics(bootstrap, prefix)


async def _answered(watch: Watch, model: str, since_ms: int) -> Burst | None:
    with suppress(TimeoutError):
        async with asyncio.timeout(_GIVE_UP_S):
            while (found := watch.answer(model, since_ms)) is None:
                await asyncio.sleep(0.1)
            return found
    return None


async def _load(session: ClientSession, stack: Stack, model: str, rates: dict[str, float]) -> None:
    url = f"http://127.0.0.1:{stack.ports['gateway-a']}/v1/completions"
    body = {"model": model, "prompt": "word " * 32, "max_tokens": _TOKENS, "ignore_eos": True}
    asked: set[asyncio.Task[None]] = set()

    async def ask() -> None:
        with suppress(ClientError, TimeoutError):
            async with session.post(url, json=body) as answer:
                await answer.read()

    while True:
        task = asyncio.create_task(ask())
        asked.add(task)
        task.add_done_callback(asked.discard)
        rate = rates[model]
        for _ in range(
            max(1, round(20 / rate))
        ):  # Short sleeps, so that the start of a burst is noticed.
            await asyncio.sleep(0.05)
            if rates[model] != rate:
                break


def _p95(values: list[int]) -> int:
    return sorted(values)[math.ceil(0.95 * len(values)) - 1]


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 both aims are met, 1 an aim is missed, 2 the benchmark could not run."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.burst", description=__doc__)
    parser.add_argument("--bursts", type=int, default=20, help="how many (20)")
    parser.add_argument("--broker", default="", metavar="HOST:PORT", help="default: embedded")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write figures there")
    options = parser.parse_args(argv)
    if not 1 <= options.bursts <= 10_000:
        parser.error(f"--bursts {options.bursts}: allowed: 1 to 10000")
    logging.disable(logging.WARNING)
    try:
        found = asyncio.run(_run(options))
    except (UserError, BrokerUnreachable, TopicsUnusable, TimeoutError) as error:
        print(f"burst: {error or 'the stack did not come up'}", file=sys.stderr)
        return 2
    return _tell(found, options.json)


async def _run(options: argparse.Namespace) -> list[Burst | None]:
    found: list[Burst | None] = []
    while len(found) < options.bursts:
        prefix = f"burst-{secrets.token_hex(4)}."
        async with AsyncExitStack() as closing:
            folder = closing.enter_context(tempfile.TemporaryDirectory(prefix="shoal-burst-"))
            bootstrap = options.broker or await closing.enter_async_context(own_broker(prefix))
            found += await one_round(bootstrap, prefix, Path(folder))
        for one in found[-len(MODELS) :]:
            first = f"{one.first_to_assignment_ms} ms" if one else "no answer"
            last = f"{one.record_to_assignment_ms} ms" if one else ""
            print(f"{len(found):3d}  first request to assignment {first:>9}  "
                  f"last record to assignment {last:>7}", flush=True)  # fmt: skip
    return found[: options.bursts]


def _tell(found: list[Burst | None], out: Path | None) -> int:
    answered = [one for one in found if one is not None]
    firsts = [one.first_to_assignment_ms for one in answered] or [-1]
    lasts = [one.record_to_assignment_ms for one in answered] or [-1]
    figures = {
        "bursts": len(found),
        "answered": len(answered),
        "first_to_assignment_p95_ms": _p95(firsts),
        "first_to_assignment_p50_ms": sorted(firsts)[len(firsts) // 2],
        "record_to_assignment_p95_ms": _p95(lasts),
        "record_to_assignment_p50_ms": sorted(lasts)[len(lasts) // 2],
    }
    for name, value in figures.items():
        print(f"{name} {value}")
    if out is not None:
        out.write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2))
    good = len(answered) == len(found) and _p95(firsts) <= 3000 and max(lasts) <= 500
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
