"""Speed of reading telemetry: `python -m loadtests.stream_bench [--broker HOST:PORT] [--json OUT]`.

Records of 100 requests each, as from gateways, are written to a new topic on one broker (an
embedded one by default). One process reads them twice: with a bare `getmany` and `orjson.loads`,
and with our code into windows. It queries the windows once for every second of records at the
steady rate. Then it follows another process that writes at that rate. It queries the windows as
often as the controller, up to ten times a second. At the end the windows are filled with half an
hour of records of all gateways, so peak memory is that of a long-running controller. CPU seconds
are those of this process, without loading or compiling the windows' kernel. Gateways report the
kinds of requests per combo (`sent`) only for models that are planned by kind. The cost of these
kinds per record is measured separately. JSON keys:

    bare_records_per_cpu_s, ours_records_per_cpu_s, us_per_record, requests_per_cpu_s,
    p99_append_to_window_ms, peak_rss_mib, steady_us_per_record, kinds_us_per_record
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import orjson
from aiokafka import AIOKafkaProducer, TopicPartition

from autoscaler.domain.cluster import Policy
from autoscaler.estimate.model_demand import observe_demand
from autoscaler.estimate.windows import TelemetryWindows
from streams.broker.broker_reach import parse_address
from streams.broker.topic_admin import ensure_topics
from streams.clock import Clock
from streams.controller.demand_sources import gateways_sink
from streams.garbage_collection import collect_rarely
from streams.loop.tick_schedule import TickPacing
from streams.ports.demand_source import Sink
from streams.ports.micro_batches import MicroBatch, PartitionMerger
from streams.ports.telemetry_topic import TelemetryTopic
from streams.ports.telemetry_wire import read_reported
from topics.codec import encode
from topics.edge.kafka_clients import admin as new_admin
from topics.edge.kafka_clients import consumer as new_consumer
from topics.edge.kafka_clients import producer as new_producer
from topics.sketch import bucket_of
from topics.telemetry import Telemetry
from topics.telemetry_columns import SEQUENCE, batch_of
from topics.time_base import TimeBase
from topics.topic_table import TABLE, TELEMETRY

REQUESTS = 100
_SKETCHED = ((300.0, 0.5), (30.0, 0.2), (1000.0, 1.0), (200.0, 0.8))
"""Median and sigma of the time to first token and between tokens (ms), and of lengths (tokens)."""
_SAID = {
    "us_per_record": "CPU, catching up: a look every {per_s} records",
    "steady_us_per_record": "CPU, at {per_s} records/s: {looks} looks, when the controller would",
    "kinds_us_per_record": "CPU, more where a record says 3 kinds sent to 2 groups each",
}
_TOGETHER = 100


def records(
    models: int, gateways: int, seconds: int, seed: int, first_s: int = 0
) -> list[tuple[str, bytes]]:
    """(key, value) of every model at every gateway, for each second from `first_s` on.

    Each record has 100 requests with log-normal lengths and latencies.
    """
    random_ = random.Random(seed)
    made = []
    sketches = [[_sketch(random_, *of) for _ in range(50)] for of in _SKETCHED]
    sequence = first_s * gateways * models
    for second in range(first_s, first_s + seconds):
        for gateway in range(gateways):
            for model in range(models):
                sequence += 1
                record = _record(
                    f"model-{model}", f"gateway-{gateway}", sequence,
                    1_700_000_000_000 + second * 1000, REQUESTS,
                    [random_.choice(of) for of in sketches],
                )  # fmt: skip
                made.append((record.model, encode(record)))
    return made


def _load() -> None:
    """Load the kernel in advance. Otherwise the first records would wait for it."""
    windows = TelemetryWindows()
    record = _record("model", "gateway", 1, 1000, 1, [{0: 1}] * 4)
    windows.add_all(read_reported([encode(record)])[0], np.array([1000]))
    observe_demand(windows, ["model"], Policy(), 2000)


def _fill(windows: TelemetryWindows, models: Sequence[str], requests: int, now_ms: int) -> None:
    """Fill `windows` with half an hour of records. Each model has `requests` requests in each
    second.
    """
    random_ = random.Random(0)
    sketches = [[_sketch(random_, *of, requests) for of in _SKETCHED] for _ in range(4)]
    said = [
        batch_of([_record(model, "all", 0, now_ms, requests, one) for model in models])
        for one in sketches
    ]
    for second in range(1800):
        records = random_.choice(said)
        records.numbers[:, SEQUENCE] = second
        ends_ms = np.full(len(models), now_ms - (1799 - second) * 1000)
        windows.add_all(replace(records, numbers=records.numbers.copy()), ends_ms)
    observe_demand(windows, models, Policy(), now_ms)


def _record(
    model: str, gateway: str, sequence: int, end_ms: int, requests: int,
    sketches: Sequence[dict[int, int]],
) -> Telemetry:  # fmt: skip
    ttft, tpot, inputs, outputs = sketches
    return Telemetry(
        model=model, gateway=gateway, boot="boot", sequence=sequence, end_ms=end_ms, span_ms=1000,
        age_ms=0, arrivals=requests, completions=requests, failures=0, refused=0,
        attained=requests, input_tokens_arrived=requests * 1000, input_tokens=requests * 1000,
        output_tokens=requests * 200, in_flight=40, route_generation=3, ttft_ms=ttft, tpot_ms=tpot,
        input_lengths=inputs, output_lengths=outputs,
    )  # fmt: skip


def _sketch(
    random_: random.Random, middle: float, sigma: float, requests: int = REQUESTS
) -> dict[int, int]:
    found: dict[int, int] = {}
    for _ in range(requests):
        bucket = bucket_of(middle * random_.lognormvariate(0.0, sigma))
        found[bucket] = found.get(bucket, 0) + 1
    return found


def _kinds_us(made: Sequence[tuple[str, bytes]]) -> float:
    """Additional CPU time in us to read a record with kinds; the best of five."""
    sent = {f"type-{k}": {f"us-east/l40s/on-demand:{n}": 17 + n for n in (1, 2)} for k in range(3)}
    wire = [value for _, value in made[:2000]]
    with_kinds = [one.replace(b'"sent":{}', b'"sent":' + orjson.dumps(sent)) for one in wire]
    took = []
    for batch in (wire, with_kinds):
        runs = []
        for _ in range(5):
            began = time.process_time()
            for at in range(0, len(batch), _TOGETHER):
                read_reported(batch[at : at + _TOGETHER])
            runs.append(time.process_time() - began)
        took.append(min(runs) / len(batch))
    return (took[1] - took[0]) * 1e6


async def _write(producer: AIOKafkaProducer, name: str, made: Sequence[tuple[str, bytes]]) -> None:
    for key, value in made:
        await producer.send(name, value, key=key.encode())
    await producer.flush()


async def _bare(bootstrap: str, parts: list[TopicPartition], count: int) -> float:
    """CPU seconds of a bare loop over `count` records. Its consumer has the settings of ours."""
    began = time.process_time()
    consumer = new_consumer(bootstrap, "bench-bare", fetch_max_wait_ms=40)
    await consumer.start()
    consumer.assign(parts)
    await consumer.seek_to_beginning(*parts)
    seen = 0
    while seen < count:
        for messages in (await consumer.getmany(timeout_ms=1000, max_records=5000)).values():
            for message in messages:
                orjson.loads(message.value)
            seen += len(messages)
    await consumer.stop()
    return time.process_time() - began


class _Source(TelemetryTopic):
    """Reads and merges telemetry. note: called with each merged micro-batch."""

    note: Callable[[MicroBatch], None]

    def _count(self, merger: PartitionMerger, batches: Sequence[MicroBatch], sink: Sink) -> None:
        super()._count(merger, batches, sink)
        for batch in batches:
            self.note(batch)


class _Followed:
    """Our code as in the controller: read, add to windows, query every model.

    look_each: number of records between queries while existing records are read.
    """

    def __init__(
        self, bootstrap: str, prefix: str, models: int, embedded: bool, look_each: int
    ) -> None:
        self.clock = Clock(TimeBase(1.0, 1_700_000_000_000, time.monotonic_ns()))
        self.source = _Source(bootstrap, prefix, self.clock, self._poison, {}, 1800, embedded)
        self.source.note = self.count
        self.windows = TelemetryWindows()
        self.pace = TickPacing(self.clock)
        self.sink = gateways_sink(self.windows, {}, self.pace.fresh.set)
        self.models = [f"model-{k}" for k in range(models)]
        self.waiting: list[int] = []
        self.delays_ms: list[float] = []
        self.looks = 0
        self.began_cpu_s = 0.0
        self.seen = 0
        self.look_each = look_each

    def _poison(self, poison: object) -> None:
        raise AssertionError(poison)

    def count(self, batch: MicroBatch) -> None:
        """Count the records of a merged micro-batch, and query the windows every `look_each` of
        them."""
        due, self.seen = self.seen // self.look_each, self.seen + len(batch.values)
        if self.seen // self.look_each > due:
            self.query_windows()

    def time(self, batch: MicroBatch) -> None:
        """Keep the append times of the records of a merged micro-batch until the next query."""
        if not self.waiting and not self.delays_ms:
            self.began_cpu_s, self.looks = time.process_time(), 0
        self.waiting += self.clock.of_log()(np.array(batch.log_ms)).tolist()

    def query_windows(self) -> None:
        """Query the windows as a tick does. Afterwards they include all waiting records."""
        observe_demand(self.windows, self.models, Policy(), self.clock.now_ms())
        self.looks += 1
        now_ms = self.clock.now_ms()
        self.delays_ms += [now_ms - event_ms for event_ms in self.waiting]
        self.waiting.clear()

    async def looking(self) -> None:
        """Query the windows as often as the controller."""
        never = asyncio.Event()
        while True:
            await self.pace.next(1.0, never)
            began_s = self.clock.now_s()
            self.query_windows()
            self.pace.tick_finished(began_s)


async def _ours(followed: _Followed, count: int) -> float:
    """CPU seconds of our code over `count` records, with queries."""
    began = time.process_time()
    await followed.source.replay(followed.sink)
    if count % followed.look_each:
        followed.query_windows()
    took = time.process_time() - began
    assert followed.seen == count, f"{followed.seen} of {count} records"
    return took


def _write_steadily(bootstrap: str, name: str, given: argparse.Namespace) -> None:
    """Write `per_s` records/s for `for_s` seconds in a separate process."""
    count = given.per_s * given.for_s
    seconds = -(-count // (given.models * given.gateways))
    made = records(given.models, given.gateways, seconds, given.seed + 1, given.first_s)[:count]

    async def write() -> None:
        producer = new_producer(bootstrap, "bench-steady", linger_ms=5)
        await producer.start()
        started, sent = time.monotonic(), 0
        while sent < count:
            due = min(count, int((time.monotonic() - started) * given.per_s))
            for key, value in made[sent:due]:
                await producer.send(name, value, key=key.encode())
            sent = due
            await asyncio.sleep(0.01)
        await producer.stop()

    asyncio.run(write())


async def _steady(
    followed: _Followed, bootstrap: str, name: str, given: argparse.Namespace
) -> tuple[float, float]:
    """(99th percentile in ms, CPU seconds).

    The percentile is over the times from a record's append to the next query of the windows. CPU
    seconds are from the first record to the query that includes the last one.
    """
    count = given.per_s * given.for_s
    followed.source.note = followed.time
    follow = asyncio.create_task(followed.source.follow(followed.sink))
    await followed.source.live()
    followed.waiting.clear()
    followed.delays_ms.clear()
    looks = asyncio.create_task(followed.looking())
    spawn = get_context("spawn")
    writer = spawn.Process(target=_write_steadily, args=(bootstrap, name, given), daemon=True)
    writer.start()
    async with asyncio.timeout(120 + 3 * given.for_s):
        while len(followed.delays_ms) < count:
            await asyncio.sleep(0.05)
            if writer.exitcode:
                raise RuntimeError(f"the writer of records ended with {writer.exitcode}")
    took = time.process_time() - followed.began_cpu_s
    await asyncio.to_thread(writer.join)
    for task in (looks, follow):
        task.cancel()
    await asyncio.gather(looks, follow, return_exceptions=True)
    delays = sorted(followed.delays_ms)
    return delays[int(0.99 * (len(delays) - 1))], took


async def bench(given: argparse.Namespace, bootstrap: str) -> dict[str, float]:
    """Run all measurements on the broker at `bootstrap`."""
    prefix = given.prefix or f"bench-{uuid.uuid4().hex[:8]}."
    found = await ensure_topics(bootstrap, prefix)
    name = TELEMETRY.wire_name(prefix)
    parts = [TopicPartition(name, n) for n in range(found.partitions[TELEMETRY.name])]
    seconds = max(1, given.records // (given.models * given.gateways))
    made = records(given.models, given.gateways, seconds, given.seed)
    producer = new_producer(bootstrap, "bench", linger_ms=5)
    await producer.start()
    try:
        await _write(producer, name, made)
        bare_s = await _bare(bootstrap, parts, len(made))
        followed = _Followed(bootstrap, prefix, given.models, found.embedded, given.per_s)
        ours_s = await _ours(followed, len(made))
        given.first_s = seconds
        p99_ms, steady_s = await _steady(followed, bootstrap, name, given)
        given.looks = followed.looks
        now_ms = followed.clock.now_ms()
        _fill(followed.windows, followed.models, REQUESTS * given.gateways, now_ms)
    finally:
        await producer.stop()
        if not found.embedded:
            client = new_admin(bootstrap, "bench")
            await client.start()
            await client.delete_topics([topic.wire_name(prefix) for topic in TABLE])
            await client.close()
    return {
        "bare_records_per_cpu_s": len(made) / bare_s,
        "ours_records_per_cpu_s": len(made) / ours_s,
        "us_per_record": ours_s / len(made) * 1e6,
        "requests_per_cpu_s": REQUESTS * len(made) / ours_s,
        "p99_append_to_window_ms": p99_ms,
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "steady_us_per_record": steady_s / (given.per_s * given.for_s) * 1e6,
        "kinds_us_per_record": _kinds_us(made),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broker", default="", help="HOST:PORT (default: an embedded one)")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--models", type=int, default=100)
    parser.add_argument("--gateways", type=int, default=20)
    parser.add_argument("--per-s", type=int, default=5000, help="records/s of the steady part")
    parser.add_argument("--for-s", type=int, default=4, help="seconds of the steady part")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(argv)
    given.prefix = ""
    collect_rarely()  # Garbage collection as in the controller
    _load()
    embedded = None
    if not given.broker:
        given.prefix = "bench."
        argv_ = [sys.executable, "-m", "streams.broker", "--prefix", given.prefix]
        embedded = subprocess.Popen(argv_, stdout=subprocess.PIPE)
        assert embedded.stdout is not None
        given.broker = json.loads(embedded.stdout.readline())["bootstrap"]
    try:
        found = asyncio.run(bench(given, parse_address(given.broker)))
    finally:
        if embedded is not None:
            embedded.terminate()
            embedded.wait()
    for key, value in found.items():
        said = _SAID.get(key, "").format_map(vars(given))
        print(f"{key:26} {value:12.1f}  {said}".rstrip())
    if given.json:
        given.json.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
