"""Attacks on a running gateway: their effect on other clients and on the gateway's memory.

    python -m loadtests.gateway_attacks [--seconds 3] [--rounds 2] [--only ATTACK] [--json OUT]

Ordinary clients send requests to two gateways at a steady rate, first without an attack, then while
one client attacks the first gateway. Each attack has these figures: the p99 latency of ordinary
requests (whole answers, real ms) without and with the attack, and the peak memory of the attacked
gateway with its parser process. The second gateway has the same code and the same requests but no
attack. Its latency shows the effect of the shared machine. The result is `held` if the attacked p99
is within twice the quiet one. It is `machine` if the attacked p99 is only within twice that of the
second gateway.

The attacker runs only on otherwise idle cores (SCHED_IDLE). Clients, engine and both gateways,
except the attacked one's parser, get priority (SCHED_FIFO) if that is allowed. In production these
processes do not share cores, so the rest of the delay comes from the gateway itself.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import gzip
import json
import os
import socket
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from executors.gateway.wire.engine_pool import EnginePool, TransportError
from loadtests.gateway_load import _PLAIN, ask
from loadtests.gateway_processes import Target, children, forget_peak, peak_mib, started

_HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
_RATE = 100.0
Attack = Callable[[str, Counter[str]], Awaitable[None]]


def body(data: bytes, *more: bytes) -> bytes:
    lines = b"".join(line + b"\r\n" for line in more)
    return _HEAD + lines + b"Content-Length: %d\r\n\r\n%s" % (len(data), data)


async def connected(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect with a small send buffer, so that no write keeps a core busy in the kernel for
    milliseconds.
    """
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
    sock.setblocking(False)
    host, _, port = address.partition(":")
    await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
    return await asyncio.open_connection(sock=sock)


async def send(address: str, answers: Counter[str], data: bytes, wait_s: float = 15.0) -> None:
    """Send `data` unchanged and record the status of the answer."""
    try:
        reader, writer = await connected(address)
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
    writers = []
    for _ in range(50):
        reader, writer = await connected(address)
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
    "500 KB of small numbers": repeated(body(_SMALL[:500_000] + b"0]}")),
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
_LONGER_S = {"1,000 half-sent heads": 12.0}  # The gateway refuses such heads after 10 s.


async def ordinary(pool: EnginePool, targets: list[Target], seconds: float) -> list[list[float]]:
    """Send ordinary requests at a steady rate; returns their latencies in ms, per target."""
    found: list[list[float]] = [[] for _ in targets]

    async def one(number: int) -> None:
        began = time.perf_counter()
        await ask(pool, targets[number], _PLAIN)
        found[number].append((time.perf_counter() - began) * 1e3)

    tasks = []
    for turn in range(int(seconds * _RATE * len(targets))):
        tasks.append(asyncio.create_task(one(turn % len(targets))))
        await asyncio.sleep(1.0 / _RATE / len(targets))
    await asyncio.gather(*tasks)
    return found


@dataclass
class Suffered:
    """Effect of an attack on other clients: latencies in ms of the attacked and of the second
    gateway."""

    quiet: list[float] = field(default_factory=list)
    attacked: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    peak_mib: float = 0.0
    failed: int = 0
    answers: Counter[str] = field(default_factory=Counter)

    def figures(self) -> dict[str, object]:
        quiet, attacked, beside = p99(self.quiet), p99(self.attacked), p99(self.beside)
        within = "held" if attacked <= 2 * quiet else "machine" if attacked <= 2 * beside else "no"
        return {
            "quiet_p99_ms": round(quiet, 2),
            "attacked_p99_ms": round(attacked, 2),
            "ratio": round(attacked / quiet, 2),
            "beside_p99_ms": round(beside, 2),
            "within_twice": within,
            "peak_mib": round(self.peak_mib),
            "failed": self.failed,
            "attacker": dict(self.answers),
        }


def p99(found: list[float]) -> float:
    return statistics.quantiles(found, n=100)[98]


async def suffer(attacked: Target, beside: Target, name: str, s: float, found: Suffered) -> None:
    """Measure one quiet period and one under attack. The attacker is a separate process."""
    pool, targets = EnginePool(5.0, 2.0, 1 << 24), [attacked, beside]
    failed = attacked.failed
    await ordinary(pool, targets, 0.3)  # This opens the connections.
    found.quiet += (await ordinary(pool, targets, s))[0]
    attacker = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "loadtests.gateway_attacks", "--attack", name,
        "--address", attacked.address, "--seconds", str(s), stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert attacker.stdout is not None
    await attacker.stdout.readline()  # The attacker is ready.
    pid = attacked.pids[0]
    forget_peak((pid, *children(pid)))
    for list_, more in zip(
        (found.attacked, found.beside), await ordinary(pool, targets, s), strict=True
    ):
        list_ += more
    found.peak_mib = max(found.peak_mib, peak_mib((pid, *children(pid))))
    found.answers += Counter(json.loads(await attacker.stdout.readline()))
    await attacker.wait()
    found.failed += attacked.failed - failed
    pool.close()


def before_others(pid: int) -> None:
    """Let `pid` (0: this process) run before other processes, if that is allowed."""
    with contextlib.suppress(PermissionError):
        policy = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(pid, policy, os.sched_param(1))


async def attack(name: str, address: str, seconds: float) -> None:
    """Repeat the attack for `seconds`."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    print("ready", flush=True)
    answers: Counter[str] = Counter()
    until = time.monotonic() + seconds
    try:
        async with asyncio.timeout(seconds):
            while time.monotonic() < until:
                await ATTACKS[name](address, answers)
    except (TimeoutError, TransportError):
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
    gc.disable()  # A pause of the clients would look like a pause of the gateway.
    with started((1, 1), others=False) as (engine, shoal, beside):
        for pid in (0, *engine.pids, *shoal.pids, *beside.pids):
            before_others(pid)
        print(
            f"{'p99 in ms':<24}    quiet  attacked  ratio  second  within 2x   MiB  failed",
            "answers",
        )
        for name in [options.only] if options.only else ATTACKS:
            suffered = Suffered()
            for _ in range(options.rounds):
                seconds = max(options.seconds, _LONGER_S.get(name, 0.0))
                uvloop.run(suffer(shoal, beside, name, seconds, suffered))
            row = found[name] = suffered.figures()
            print(
                f"{name:<24} {row['quiet_p99_ms']:>8}  {row['attacked_p99_ms']:>8}"
                f"  {row['ratio']:>5}  {row['beside_p99_ms']:>6}  {row['within_twice']:>9}"
                f"  {row['peak_mib']:>4}  {row['failed']:>6}  {row['attacker']}",
                flush=True,
            )
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=2) + "\n")
    bad = any(row["failed"] or row["within_twice"] == "no" for row in found.values())
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
