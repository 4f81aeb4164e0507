"""What the gateway costs, beside other proxies, in one run on real processes.

    python -m loadtests.gateway_load [--json OUT] [--rounds 3] [--workers 2]

Each proxy stands in front of the same engine, which answers at once or streams 64 events, 4 ms
apart. Targets take turns within every round, so that a machine that is busy with something else
treats all alike. Measured per target: requests per CPU-second of the proxy's process (plain and
streamed), the latency that the proxy adds to the direct way at a low rate (plain requests, time to
the last byte), and what 1,000 open streams take in memory. nginx is measured where it is
installed; `bare` is the shortest aiohttp reverse proxy (`loadtests.gateway_targets`). With
`--workers N` our gateway is measured with one process and, as `shoal-N`, with N on one port; its
`scaling` is N times its requests per CPU-second over those of one process: what N cores serve
beside one, if clients and engine have cores of their own, which this machine need not have.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from executors.gateway.wire.pool import Pool
from loadtests.gateway_targets import EVENTS, nginx_config
from topics.codec import encode
from topics.records import Endpoint, RouteGroup, Routes
from topics.timebase import TimeBase

_PROMPT = "word " * 200
_PLAIN = json.dumps(
    {"model": "chat", "prompt": _PROMPT, "max_tokens": 400}, separators=(",", ":")
).encode()
_STREAM = _PLAIN[:-1] + b',"stream":true}'
_OPEN_STREAMS = 1_000


@dataclass
class Target:
    """One way to the engine. pids: the proxy's processes, none for the direct way."""

    name: str
    address: str
    pids: tuple[int, ...] = ()
    plain: int = 0
    plain_cpu_s: float = 0.0
    streams: int = 0
    stream_cpu_s: float = 0.0
    late_ms: list[float] = field(default_factory=list)
    base_mib: float = 0.0
    open_mib: float = 0.0
    failed: int = 0
    workers: int = 1


def cpu_s(pids: tuple[int, ...]) -> float:
    """User and system seconds of processes."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def rss_mib(pids: tuple[int, ...]) -> float:
    """Resident memory of processes."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def ask(pool: Pool, target: Target, body: bytes) -> None:
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {target.address}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    answer = await pool.send(target.address, head, body)
    text = await answer.read()
    wanted = EVENTS if body is _STREAM else 0
    target.failed += answer.status != 200 or text.count(b'"text"') < max(1, wanted)


async def busy(pool: Pool, target: Target, body: bytes, seconds: float, at_once: int) -> int:
    """Requests answered in `seconds` by `at_once` clients that ask again and again."""
    until = time.monotonic() + seconds
    count = 0

    async def client() -> None:
        nonlocal count
        while time.monotonic() < until:
            await ask(pool, target, body)
            count += 1

    await asyncio.gather(*(client() for _ in range(at_once)))
    return count


async def calm(pool: Pool, target: Target, seconds: float, rate: float) -> None:
    """Latencies at a low rate."""
    for _ in range(int(seconds * rate)):
        began = time.perf_counter()
        await ask(pool, target, _PLAIN)
        target.late_ms.append((time.perf_counter() - began) * 1e3)
        await asyncio.sleep(max(0.0, 1.0 / rate - (time.perf_counter() - began)))


async def measure(targets: list[Target], rounds: int, seconds: float) -> None:
    """Fill in what is measured."""
    pool = Pool(connect_s=5.0, idle_s=2.0, answer_bytes=1 << 24)
    for target in targets:
        await busy(pool, target, _PLAIN, 0.5, 8)  # imports, caches, connections
        await busy(pool, target, _STREAM, 0.5, 8)
        target.base_mib = rss_mib(target.pids)
    for _ in range(rounds):
        for target in targets:
            await calm(pool, target, seconds, 100.0)
        for target in targets:
            before = cpu_s(target.pids)
            target.plain += await busy(pool, target, _PLAIN, seconds, 16)
            target.plain_cpu_s += cpu_s(target.pids) - before
        for target in targets:
            before = cpu_s(target.pids)
            target.streams += await busy(pool, target, _STREAM, seconds, 32)
            target.stream_cpu_s += cpu_s(target.pids) - before
    for target in targets:
        asking = [asyncio.create_task(ask(pool, target, _STREAM)) for _ in range(_OPEN_STREAMS)]
        while not all(task.done() for task in asking):
            await asyncio.sleep(0.05)
            target.open_mib = max(target.open_mib, rss_mib(target.pids))
    pool.close()


def report(targets: list[Target]) -> dict[str, object]:
    """What the issue asks for, as JSON."""
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


def scaling(targets: list[Target]) -> dict[str, dict[str, float]]:
    """What several processes of our gateway serve beside one, each on a core of its own."""
    found = {}
    one = next(target for target in targets if target.name == "shoal")
    for many in targets:
        if many.workers > 1:
            plain = (many.plain / many.plain_cpu_s) / (one.plain / one.plain_cpu_s)
            stream = (many.streams / many.stream_cpu_s) / (one.streams / one.stream_cpu_s)
            found[many.name] = {
                "plain": round(many.workers * plain, 2),
                "stream": round(many.workers * stream, 2),
            }
    return found


def quantile(target: Target, percent: int) -> float:
    return statistics.quantiles(target.late_ms, n=100)[percent - 1]


def said_port(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    line = process.stdout.readline()
    return int(json.loads(line)["url"].rsplit(":", 1)[1]) if "{" in line else int(line)


@contextmanager
def started(workers: int, beside: str = "bare") -> Iterator[list[Target]]:
    """All processes, ended afterwards. beside: the part of `gateway_targets` that stands next to
    our gateway; with `bare`, nginx does so too where it is installed."""
    processes: list[subprocess.Popen[str]] = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # nothing is left behind then either

    def run(*command: str) -> subprocess.Popen[str]:
        made = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        processes.append(made)
        return made

    part = (sys.executable, "-m", "loadtests.gateway_targets")
    with tempfile.TemporaryDirectory() as folder:
        try:
            engine = f"127.0.0.1:{said_port(run(*part, 'engine'))}"
            other = run(*part, beside, "--upstream", engine)
            targets = [
                Target("direct", engine),
                Target(beside, f"127.0.0.1:{said_port(other)}", (other.pid,)),
            ]
            if beside == "bare" and shutil.which("nginx"):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", 0))
                    port = probe.getsockname()[1]
                config = Path(folder, "nginx.conf")
                config.write_text(nginx_config(port, engine, folder))
                nginx = run("nginx", "-p", folder, "-c", str(config))
                time.sleep(0.5)
                pids = (nginx.pid, *children(nginx.pid))
                targets.append(Target("nginx", f"127.0.0.1:{port}", pids))
            group = RouteGroup("g", 1.0, (Endpoint("e", engine),))
            routes = Routes("chat", 1, 1, 0, 2000.0, 60.0, (group,))
            base = TimeBase(1.0, 0, time.monotonic_ns()).format()
            for count in sorted({1, workers}):
                homes = [f"w{n + 1}" for n in range(count)] if count > 1 else ["."]
                for home in homes:
                    Path(folder, home).mkdir(exist_ok=True)
                    Path(folder, home, "routes.jsonl").write_bytes(encode(routes) + b"\n")
                shoal = run(
                    sys.executable, "-m", "executors.gateway", "--broker", "127.0.0.1:9",
                    "--time-base", base, "--state-dir", folder, "--drain-s", "1",
                    *(("--workers", str(count)) if count > 1 else ()),
                )  # fmt: skip
                port = said_port(shoal)
                pids = (shoal.pid, *children(shoal.pid))
                name = f"shoal-{count}" if count > 1 else "shoal"
                targets.append(Target(name, f"127.0.0.1:{port}", pids, workers=count))
            yield targets
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(10)


def children(pid: int) -> tuple[int, ...]:
    """Processes that `pid` started."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return tuple(int(word) for word in text.split())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="write the figures here")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each part of a round")
    parser.add_argument("--workers", type=int, default=1, help="and our gateway with so many")
    options = parser.parse_args()
    with (
        started(options.workers) as targets,
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
