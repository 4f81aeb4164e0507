"""What choosing a path costs a gateway: along the plan, or by asking the queues at every hop.

    python -m loadtests.path_routing_bench [--requests N] [--rounds N]

Stages of a model of components run as processes of their own and answer at once; this process does
for each request what a gateway does: choose an instance for each hop and exchange a request with
it. `planned` samples one path (`serving.paths`). `queues asked` takes the instance with the
shortest queue at each hop, as its /metrics tells, which is what a gateway must do that shares its
instances with other gateways. `own counts` does the same by what this gateway itself has in flight,
blind to the others. Rounds alternate; printed are requests per CPU-second of this process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import orjson

from autoscaler.serving.paths import Paths
from executors.engines.exposition import load
from executors.gateway.engine import Engines
from executors.gateway.settings import Clock, Settings
from executors.gateway.wire.pool import Pool
from topics.records import Endpoint, RouteGroup
from topics.routing import Hop, RoutePath, Stage
from topics.timebase import TimeBase

COUNTS = {"image": 2, "llm": 4, "all": 2}
SECONDS = {"image": 0.0, "llm": 0.0, "image,llm": 0.0}
KINDS = ("text", "photo", "photo", "text")
_CONCURRENT = 16
_MODEL = "omni"
Ask = Callable[[str], Awaitable[None]]


class Bench:
    """One gateway's view of the stages."""

    def __init__(self, engines: Engines, pool: Pool, stages: dict[str, list[Endpoint]]) -> None:
        self._engines = engines
        self._pool = pool
        self._stages = stages
        self._in_flight: dict[Endpoint, int] = {}
        self._paths = Paths()
        self._paths.apply([_routes(stages)])

    async def planned(self, kind: str) -> None:
        """Along a planned path."""
        way = self._paths.sample(kind)
        assert way is not None
        for number, hop in enumerate(way.hops):
            end = self._paths.endpoint(way, number)
            assert end is not None
            await self._exchange(end, hop.runs, number + 1 == len(way.hops))

    async def queues_asked(self, kind: str) -> None:
        """By the queues as the stages tell them."""

        async def queue(end: Endpoint) -> int:
            head = b"GET /metrics HTTP/1.1\r\nHost: %s\r\n\r\n" % end.address.encode()
            answer = await self._pool.send(end.address, head, b"")
            return load((await answer.read()).decode()).in_flight

        await self._by_queue(kind, queue)

    async def own_counts(self, kind: str) -> None:
        """By what this gateway has in flight itself."""

        async def queue(end: Endpoint) -> int:
            return self._in_flight.get(end, 0)

        await self._by_queue(kind, queue)

    async def _by_queue(self, kind: str, queue: Callable[[Endpoint], Awaitable[int]]) -> None:
        left = ["llm"] if kind == "text" else ["image", "llm"]
        while left:
            options = [("all", tuple(left))] if kind == "photo" and len(left) == 2 else []
            options.append((left[0], (left[0],)))
            ends = [(end, runs) for stage, runs in options for end in self._stages[stage]]
            lengths = await asyncio.gather(*(queue(end) for end, _ in ends))
            end, runs = ends[min(range(len(ends)), key=lambda n: lengths[n])]
            left = [component for component in left if component not in runs]
            await self._exchange(end, runs, not left)

    async def _exchange(self, end: Endpoint, runs: tuple[str, ...], last: bool) -> None:
        stage = {"runs": list(runs), "outputs": {}, "last": last}
        body = {"model": _MODEL, "prompt": "a", "max_tokens": 1, "stage": stage}
        self._in_flight[end] = self._in_flight.get(end, 0) + 1
        try:
            answer = await self._engines.post(
                end, _MODEL, "/v1/completions", orjson.dumps(body), b""
            )
            await answer.read()
            answer.close()
        finally:
            self._in_flight[end] -= 1


def _routes(stages: dict[str, list[Endpoint]]) -> RouteGroup:
    image, llm, both = Hop("image", ("image",)), Hop("llm", ("llm",)), Hop("all", ("image", "llm"))
    return RouteGroup(
        "cell",
        4.0,
        stages=tuple(Stage(name, tuple(ends)) for name, ends in stages.items()),
        paths=(
            RoutePath("text", 2.0, (llm,)),
            RoutePath("photo", 1.0, (image, llm)),
            RoutePath("photo", 1.0, (both,)),
        ),
    )


async def measure(ask: Ask, requests: int) -> float:
    """Requests per CPU-second of this process."""
    kinds = [KINDS[n % len(KINDS)] for n in range(requests)]

    async def client() -> None:
        while kinds:
            await ask(kinds.pop())

    began_s = time.process_time()
    await asyncio.gather(*(client() for _ in range(_CONCURRENT)))
    return requests / (time.process_time() - began_s)


async def run(requests: int, rounds: int) -> dict[str, float]:
    """Start the stages, measure in turns, end them."""
    async with AsyncExitStack() as stack:
        stages: dict[str, list[Endpoint]] = {}
        for name, count in COUNTS.items():
            for number in range(count):
                address = await _start(stack)
                stages.setdefault(name, []).append(Endpoint(f"{name}-{number}", address))
        clock = Clock(TimeBase(1.0, 0, time.monotonic_ns()))
        engines = await stack.enter_async_context(Engines(Settings("bench"), clock))
        pool = Pool(1.0, 3.0, 1 << 20)
        stack.callback(pool.close)
        bench = Bench(engines, pool, stages)
        ways: dict[str, Ask] = {
            "planned": bench.planned,
            "own counts": bench.own_counts,
            "queues asked": bench.queues_asked,
        }
        found: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(rounds + 1):
            for name, ask in ways.items():
                rate = await measure(ask, requests)
                if turn:  # the first one opens connections
                    found[name].append(rate)
        return {name: statistics.median(rates) for name, rates in found.items()}


async def _start(stack: AsyncExitStack) -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "executors.engines.simulated.stage", "--model", _MODEL,
        "--seconds", json.dumps(SECONDS), "--port", str(port), "--max-len", "100",
    )  # fmt: skip

    async def end() -> None:
        if process.returncode is None:
            process.kill()
        await process.wait()

    stack.push_async_callback(end)
    async with asyncio.timeout(30.0):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return f"127.0.0.1:{port}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=2000, help="a round and way (2000)")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    rates = asyncio.run(run(args.requests, args.rounds))
    most = rates["planned"]
    print(f"{'way':14} {'requests per CPU-second':>24} {'of planned':>11}")
    for name, rate in rates.items():
        print(f"{name:14} {rate:24.0f} {rate / most:11.2f}")


if __name__ == "__main__":
    main()
