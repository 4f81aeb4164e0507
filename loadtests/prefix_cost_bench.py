"""CPU time of the gateway per request, routing by prefix against its default, on real processes.

    python -m loadtests.prefix_cost_bench [--instances 16] [--kib 8 48] [--rounds 9]

Two gateways send the same conversations to one engine, which answers at once and stands for all
instances. They alternate, each part of a round has the same requests for both, and the ratio of
their CPU seconds is taken for each round. Prompts have 1 KiB to twice the given mean length.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile

import uvloop

from autoscaler.serving.routing_policies import WithinCombo
from executors.gateway.wire.engine_pool import EnginePool
from loadtests.gateway_processes import Stand, Target, cpu_s

_CHATS, _AT_ONCE = 100, 16
_WORDS = tuple(f"w{number:04x}" for number in range(4096))


def conversations(kib: int, count: int, seed: int) -> list[bytes]:
    """Bodies of `count` requests. Each is the beginning of one of 100 conversations."""
    draw = random.Random(seed)
    texts = [" ".join(draw.choices(_WORDS, k=kib * 2048 // 6)) for _ in range(_CHATS)]
    return [
        json.dumps(
            {
                "model": "chat",
                "messages": [
                    {
                        "role": "user",
                        "content": draw.choice(texts)[: 1024 * draw.randint(1, 2 * kib)],
                    }
                ],
                "max_tokens": 100,
                "stream": number % 2 == 0,
            },
            separators=(",", ":"),
        ).encode()
        for number in range(count)
    ]


async def ask_all(pool: EnginePool, target: Target, bodies: list[bytes]) -> float:
    """CPU seconds of `target` for `bodies`, from 16 clients at once."""
    left = iter(bodies)

    async def client() -> None:
        for body in left:
            head = (
                f"POST /v1/chat/completions HTTP/1.1\r\nHost: {target.address}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            ).encode()
            answer = await pool.send(target.address, head, body)
            await answer.read()
            target.failed += answer.status != 200

    before = cpu_s(target.pids)
    await asyncio.gather(*(client() for _ in range(_AT_ONCE)))
    return cpu_s(target.pids) - before


async def measure(
    first: Target, second: Target, kib: int, requests: int, rounds: int
) -> list[float]:
    """CPU time per request of `second` relative to `first`, by round."""
    pool = EnginePool(connect_s=5.0, idle_s=2.0, answer_bytes=1 << 24)
    ratios = []
    spent = {first.name: 0.0, second.name: 0.0}
    for number in range(rounds + 1):
        bodies = conversations(kib, requests, number)
        pair = (first, second) if number % 2 else (second, first)
        used = {target.name: await ask_all(pool, target, bodies) for target in pair}
        if number:  # the first round fills caches and opens connections
            ratios.append(used[second.name] / used[first.name])
            for name in spent:
                spent[name] += used[name] / (rounds * requests)
    pool.close()
    shown = ", ".join(f"{name} {1e6 * cpu:.0f} us" for name, cpu in spent.items())
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(
        f"{kib} KiB in the mean: {shown}; ratio {statistics.mean(ratios):.3f}, "
        f"median {middle:.3f} (quartiles {low:.3f} to {high:.3f})",
        flush=True,
    )
    return ratios


def main() -> int:
    """Print one line for each length of prompts."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.prefix_cost_bench")
    parser.add_argument("--instances", type=int, default=16)
    parser.add_argument("--kib", type=int, nargs="+", default=[8, 48])
    parser.add_argument("--requests", type=int, default=500, help="of a round")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        stand = Stand(folder)
        try:
            for inside in (WithinCombo.OPPORTUNISTIC, WithinCombo.PREFIX):
                stand.shoal(1, inside, options.instances)
            _, first, second = stand.targets
            for kib in options.kib:
                runner.run(measure(first, second, kib, options.requests, options.rounds))
        finally:
            stand.end()
    return 1 if first.failed or second.failed else 0


if __name__ == "__main__":
    sys.exit(main())
