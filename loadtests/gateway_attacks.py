"""Attacks on a running gateway under load: what other clients and its memory feel of them.

    python -m loadtests.gateway_attacks [--seconds 4] [--json OUT]

Ordinary clients ask at a steady rate while one client misbehaves. Per attack: the 99th percentile
of the ordinary requests (streams, time to the last byte, real ms), beside the quiet one measured
just before; the gateway's peak memory with its parser process; what the attacker was answered.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from executors.gateway.wire.pool import Broken, Pool
from loadtests.gateway_load import _PLAIN, Target, ask, children, rss_mib, started

_HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
_RATE = 50.0
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


async def suffered(address: str, pid: int, name: str, seconds: float) -> dict[str, object]:
    """One attack, in a process of its own, and the quiet time before it."""
    pool, target = Pool(5.0, 2.0, 1 << 24), Target("shoal", address)
    quiet = await ordinary(pool, target, seconds)
    attacker = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "loadtests.gateway_attacks", "--attack", name,
        "--address", address, "--seconds", str(seconds), stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert attacker.stdout is not None
    await attacker.stdout.readline()  # it is ready
    peak = 0.0
    loading = asyncio.create_task(ordinary(pool, target, seconds))
    while not loading.done():
        peak = max(peak, rss_mib((pid, *children(pid))))
        await asyncio.sleep(0.02)
    said = await attacker.stdout.readline()
    await attacker.wait()
    pool.close()
    return {
        "quiet_p99_ms": round(statistics.quantiles(quiet, n=100)[98], 2),
        "attacked_p99_ms": round(statistics.quantiles(loading.result(), n=100)[98], 2),
        "failed": target.failed,
        "peak_mib": round(peak),
        "attacker": json.loads(said),
    }


async def attack(name: str, address: str, seconds: float) -> None:
    """Again and again for `seconds`."""
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
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--json")
    parser.add_argument("--attack", choices=sorted(ATTACKS), help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.attack:
        uvloop.run(attack(options.attack, options.address, options.seconds))
        return 0
    found = {}
    with started(1) as targets:
        shoal = targets[-1]
        uvloop.run(suffered(shoal.address, shoal.pids[0], "unknown models", 1.0))
        for name in ATTACKS:
            found[name] = row = uvloop.run(
                suffered(shoal.address, shoal.pids[0], name, options.seconds)
            )
            print(f"{name}: {json.dumps(row)}", flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=2) + "\n")
    return 1 if any(row["failed"] for row in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
