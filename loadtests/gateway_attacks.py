"""Attacks on a running gateway under load: what other clients and its memory feel of them.

    python -m loadtests.gateway_attacks [--seconds 3] [--rounds 2] [--only ATTACK] [--json OUT]

Ordinary clients ask at a steady rate, first alone and then while one client misbehaves. Per
attack: the 99th percentile of the ordinary requests (whole answers, real ms) in the quiet rounds
and in the attacked ones, and the peak memory of the gateway with its parser process. All of it is
done to `swallow` as well (`loadtests.gateway_targets`), a proxy that throws away what it is
attacked with: the ratio of its two figures is what the attack costs whoever has to read it on this
machine. The attacker runs when nothing else does (SCHED_IDLE), because it would not sit on the
gateway's own cores elsewhere.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from executors.gateway.wire.pool import Broken, Pool
from loadtests.gateway_load import _PLAIN, Target, ask, children, rss_mib, started

_HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
_RATE = 100.0
Attack = Callable[[str, Counter[str]], Awaitable[None]]


def body(data: bytes, *more: bytes) -> bytes:
    lines = b"".join(line + b"\r\n" for line in more)
    return _HEAD + lines + b"Content-Length: %d\r\n\r\n%s" % (len(data), data)


async def send(address: str, answers: Counter[str], data: bytes, wait_s: float = 10.0) -> None:
    """Send `data` as it is, note the status that comes back."""
    host, _, port = address.partition(":")
    try:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(data)
        async with asyncio.timeout(wait_s):
            line = await reader.readline()
        answers[line.split(b" ")[1].decode() if line else "closed"] += 1
        writer.close()
    except TimeoutError:
        answers["no answer yet"] += 1
        writer.close()
    except OSError:
        answers["reset"] += 1


def repeated(data: bytes, at_once: int = 4) -> Attack:
    async def attack(address: str, answers: Counter[str]) -> None:
        await asyncio.gather(*(send(address, answers, data) for _ in range(at_once)))

    return attack


async def _not_reading(address: str, answers: Counter[str]) -> None:
    host, _, port = address.partition(":")
    writers = []
    for _ in range(50):
        reader, writer = await asyncio.open_connection(host, int(port))
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(body(_PLAIN[:-1] + b',"stream":true}'))
        writers.append(writer)
    answers["held"] += len(writers)
    await asyncio.sleep(2.0)
    for writer in writers:
        writer.transport.abort()


_SMALL = b'{"model":"chat","prompt":[' + b",".join([b"0"] * 7_900_000) + b"]}"
ATTACKS: dict[str, Attack] = {
    "16 MB of small numbers": repeated(body(_SMALL)),
    "16 MB of empty objects": repeated(
        body(b'{"model":"chat","prompt":[' + b",".join([b"{}"] * 5_000_000) + b"]}")
    ),
    "100,000 strings": repeated(
        body(b'{"model":"chat","prompt":[' + b",".join([b'"a"'] * 100_000) + b"]}"), 2
    ),
    "a prompt of 16 MB": repeated(body(b'{"model":"chat","prompt":"' + b"a" * 16_000_000 + b'"}')),
    "150 unfinished bodies": repeated(
        _HEAD + b"Content-Length: 16000000\r\n\r\n" + b"a" * 15_000_000, 150
    ),
    "1,000 half-sent heads": repeated(_HEAD[:-2], 1_000),
    "deep JSON": repeated(body(b'{"model":"chat","response_format":' + b"[" * 20_000), 20),
    "gzip bomb": repeated(body(gzip.compress(b"a" * 100_000_000), b"Content-Encoding: gzip"), 10),
    "vllm_xargs": repeated(
        body(b'{"model":"chat","prompt":"a","vllm_xargs":{"kv_transfer_params":[]}}'), 20
    ),
    "clients that do not read": _not_reading,
    "unknown models": repeated(body(b'{"model":"nobody","prompt":"a"}'), 50),
}


async def ordinary(pool: Pool, target: Target, seconds: float) -> list[float]:
    """Milliseconds of steady ordinary requests."""
    found: list[float] = []

    async def one() -> None:
        began = time.perf_counter()
        await ask(pool, target, _PLAIN)
        found.append((time.perf_counter() - began) * 1e3)

    tasks = []
    for _ in range(int(seconds * _RATE)):
        tasks.append(asyncio.create_task(one()))
        await asyncio.sleep(1.0 / _RATE)
    await asyncio.gather(*tasks)
    return found


@dataclass
class Suffered:
    """What an attack did to a target's other clients. Latencies in ms."""

    quiet: list[float] = field(default_factory=list)
    attacked: list[float] = field(default_factory=list)
    peak_mib: float = 0.0
    failed: int = 0
    answers: Counter[str] = field(default_factory=Counter)

    def figures(self) -> dict[str, object]:
        quiet, attacked = p99(self.quiet), p99(self.attacked)
        return {
            "quiet_p99_ms": round(quiet, 2),
            "attacked_p99_ms": round(attacked, 2),
            "ratio": round(attacked / quiet, 2),
            "peak_mib": round(self.peak_mib),
            "failed": self.failed,
            "attacker": dict(self.answers),
        }


def p99(found: list[float]) -> float:
    return statistics.quantiles(found, n=100)[98]


async def suffer(shown: Target, name: str, seconds: float, found: Suffered) -> None:
    """One quiet time and one under attack, by a process of its own."""
    pool, target = Pool(5.0, 2.0, 1 << 24), Target(shown.name, shown.address)
    await ordinary(pool, target, 0.3)  # connections
    found.quiet += await ordinary(pool, target, seconds)
    attacker = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "loadtests.gateway_attacks", "--attack", name,
        "--address", shown.address, "--seconds", str(seconds), stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert attacker.stdout is not None
    await attacker.stdout.readline()  # it is ready
    pid = shown.pids[0]
    loading = asyncio.create_task(ordinary(pool, target, seconds))
    while not loading.done():
        found.peak_mib = max(found.peak_mib, rss_mib((pid, *children(pid))))
        await asyncio.sleep(0.05)
    found.attacked += loading.result()
    found.answers += Counter(json.loads(await attacker.stdout.readline()))
    await attacker.wait()
    found.failed += target.failed
    pool.close()


async def attack(name: str, address: str, seconds: float) -> None:
    """Again and again for `seconds`."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    print("ready", flush=True)
    answers: Counter[str] = Counter()
    until = time.monotonic() + seconds
    try:
        async with asyncio.timeout(seconds):
            while time.monotonic() < until:
                await ATTACKS[name](address, answers)
    except (TimeoutError, Broken):
        pass
    print(json.dumps(answers), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each part of a round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", choices=sorted(ATTACKS), help="one attack")
    parser.add_argument("--json", help="write the figures here")
    parser.add_argument("--attack", choices=sorted(ATTACKS), help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.attack:
        uvloop.run(attack(options.attack, options.address, options.seconds))
        return 0
    found = {}
    with started(1, "swallow") as (_, swallow, shoal):
        print(f"{'p99 in ms':<24}    quiet  attacked  ratio  (swallow)   MiB  failed  answers")
        for name in [options.only] if options.only else ATTACKS:
            ours, theirs = Suffered(), Suffered()
            for _ in range(options.rounds):
                uvloop.run(suffer(shoal, name, options.seconds, ours))
                uvloop.run(suffer(swallow, name, options.seconds, theirs))
            row, other = ours.figures(), theirs.figures()
            found[name] = {**row, "swallow": other}
            print(
                f"{name:<24} {row['quiet_p99_ms']:>8}  {row['attacked_p99_ms']:>8}"
                f"  {row['ratio']:>5}  {other['ratio']:>9}  {row['peak_mib']:>4}"
                f"  {row['failed']:>6}  {row['attacker']}",
                flush=True,
            )
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=2) + "\n")
    return 1 if any(row["failed"] for row in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
