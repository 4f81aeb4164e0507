"""Cost of the gateway compared with other proxies, in one run on real processes.

    python -m loadtests.gateway_load [--json OUT] [--rounds 3] [--workers 2]

Each proxy forwards to the same engine, which answers at once or streams 64 events, 4 ms apart.
Targets alternate within every round, so other load on the machine affects all alike. Each target
has these figures: requests per CPU-second of the proxy's process (plain and streamed), added
latency to the last byte of plain requests at a low rate, and the memory of 1,000 open streams.
nginx is measured if it is installed. `bare` is the shortest aiohttp reverse proxy
(`loadtests.gateway_targets`).

With `--workers N` our gateway and `bare` are measured with one process and with N on one port.
`scaling` is N times the ratio of requests per CPU-second with N processes and with one. Each
process gets the same load, because a busier process needs less CPU time per request. If clients and
engine have other cores, `scaling` is the throughput of N cores relative to one core. This machine
may lack such cores, so a scaling of `bare` below N is an effect of the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from pathlib import Path

import uvloop

from executors.gateway.wire.engine_pool import EnginePool
from loadtests.gateway_processes import Target, cpu_s, rss_mib, started
from loadtests.gateway_targets import EVENTS

_PROMPT = "word " * 200
_PLAIN = json.dumps(
    {"model": "chat", "prompt": _PROMPT, "max_tokens": 400}, separators=(",", ":")
).encode()
_STREAM = _PLAIN[:-1] + b',"stream":true}'
_OPEN_STREAMS = 1_000
_EVEN_REQ_PER_S = 600.0  # per process, far below its limit


async def ask(pool: EnginePool, target: Target, body: bytes) -> None:
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {target.address}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    answer = await pool.send(target.address, head, body)
    text = await answer.read()
    wanted = EVENTS if body is _STREAM else 0
    target.failed += answer.status != 200 or text.count(b'"text"') < max(1, wanted)


async def busy(pool: EnginePool, target: Target, body: bytes, seconds: float, at_once: int) -> int:
    """Count the answers that `at_once` clients get in `seconds`. Each client sends without a
    pause."""
    until = time.monotonic() + seconds
    count = 0

    async def client() -> None:
        nonlocal count
        while time.monotonic() < until:
            await ask(pool, target, body)
            count += 1

    await asyncio.gather(*(client() for _ in range(at_once)))
    return count


async def even(pool: EnginePool, target: Target, seconds: float) -> int:
    """Send requests for `seconds` at a steady rate per process."""
    rate = _EVEN_REQ_PER_S * target.workers
    began = time.perf_counter()
    asked = []
    for number in range(int(seconds * rate)):
        await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
        asked.append(asyncio.create_task(ask(pool, target, _PLAIN)))
    await asyncio.gather(*asked)
    return len(asked)


async def calm(pool: EnginePool, target: Target, seconds: float, rate: float) -> None:
    """Return latencies at a low rate."""
    for _ in range(int(seconds * rate)):
        began = time.perf_counter()
        await ask(pool, target, _PLAIN)
        target.late_ms.append((time.perf_counter() - began) * 1e3)
        await asyncio.sleep(max(0.0, 1.0 / rate - (time.perf_counter() - began)))


async def measure(targets: list[Target], rounds: int, seconds: float) -> None:
    """Measure every target and store the figures in it."""
    pool = EnginePool(connect_s=5.0, idle_s=2.0, answer_bytes=1 << 24)
    for target in targets:
        # Fill caches and open connections before the measurement.
        await busy(pool, target, _PLAIN, 0.5, 8)
        await busy(pool, target, _STREAM, 0.5, 8)
        target.base_mib = rss_mib(target.pids)
    for _ in range(rounds):
        for target in targets:
            await calm(pool, target, seconds, 100.0)
        for target in targets:
            before = cpu_s(target.pids)
            target.plain += await busy(pool, target, _PLAIN, seconds, 16 * target.workers)
            target.plain_cpu_s += cpu_s(target.pids) - before
        for target in scaled(targets):
            before = cpu_s(target.pids)
            target.even += await even(pool, target, seconds)
            target.even_cpu_s += cpu_s(target.pids) - before
        for target in targets:
            before = cpu_s(target.pids)
            target.streams += await busy(pool, target, _STREAM, seconds, 32 * target.workers)
            target.stream_cpu_s += cpu_s(target.pids) - before
    for target in targets:
        asking = [asyncio.create_task(ask(pool, target, _STREAM)) for _ in range(_OPEN_STREAMS)]
        while not all(task.done() for task in asking):
            await asyncio.sleep(0.05)
            target.open_mib = max(target.open_mib, rss_mib(target.pids))
    pool.close()


def report(targets: list[Target]) -> dict[str, object]:
    """Return the figures as JSON values."""
    direct = targets[0]
    found: dict[str, object] = {}
    for target in targets[1:]:
        found[target.name] = {
            "plain_req_per_cpu_s": round(target.plain / max(0.01, target.plain_cpu_s), 1),
            "stream_req_per_cpu_s": round(target.streams / max(0.01, target.stream_cpu_s), 1),
            "added_p50_ms": round(quantile(target, 50) - quantile(direct, 50), 3),
            "added_p99_ms": round(quantile(target, 99) - quantile(direct, 99), 3),
            "idle_mib": round(target.base_mib, 1),
            "open_streams_mib": round(target.open_mib - target.base_mib, 1),
            "failed": target.failed,
        }
    return {
        "proxies": found,
        "direct": {
            "p50_ms": round(quantile(direct, 50), 3),
            "p99_ms": round(quantile(direct, 99), 3),
        },
        "open_streams": _OPEN_STREAMS,
        "events_per_stream": EVENTS,
        "cpus": os.cpu_count(),
        "scaling": scaling(targets),
    }


def scaled(targets: list[Target]) -> list[Target]:
    """The targets that run with one process and with several."""
    names = {target.name.partition("-")[0] for target in targets if target.workers > 1}
    return [target for target in targets if target.name.partition("-")[0] in names]


def scaling(targets: list[Target]) -> dict[str, dict[str, float]]:
    """Throughput of several processes of a proxy relative to one process, each on its own core."""
    found = {}
    single = {target.name: target for target in targets}
    for many in targets:
        if many.workers > 1:
            one = single[many.name.partition("-")[0]]
            plain = (many.even / many.even_cpu_s) / (one.even / one.even_cpu_s)
            stream = (many.streams / many.stream_cpu_s) / (one.streams / one.stream_cpu_s)
            found[many.name] = {
                "plain": round(many.workers * plain, 2),
                "stream": round(many.workers * stream, 2),
            }
    return found


def quantile(target: Target, percent: int) -> float:
    return statistics.quantiles(target.late_ms, n=100)[percent - 1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="write the figures here")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each part of a round")
    parser.add_argument("--workers", type=int, default=1, help="of a proxy, compared with one")
    options = parser.parse_args()
    with (
        started(sorted({1, options.workers}), others=True) as targets,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(measure(targets, options.rounds, options.seconds))
    found = report(targets)
    text = json.dumps(found, indent=2)
    print(text)
    if options.json:
        Path(options.json).write_text(text + "\n")
    return 1 if any(target.failed for target in targets) else 0


if __name__ == "__main__":
    sys.exit(main())
