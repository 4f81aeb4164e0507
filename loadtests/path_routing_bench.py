"""Cost of choosing a path at a gateway: along the plan, or by the queues at every hop.

    python -m loadtests.path_routing_bench [--requests N] [--rounds N]

The stages of a component model are separate processes that answer at once. Three gateways, each a
whole process that reads its routes from disk, differ only in their routing:

planned         the gateway samples a path from the plan and follows that path (as Shoal does)
queues asked    each hop goes to the instance with the shortest queue in its /metrics, as a
                gateway must do that shares instances with other gateways
own counts      each hop goes to the instance with the fewest requests in flight from this
                gateway; requests of other gateways are unknown

Rounds alternate. Printed are requests per CPU-second of the gateway's process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop

from autoscaler.modes.components.component_paths import ComponentPath
from executors.engines.metrics_text import parse_load
from executors.gateway.__main__ import main as gateway
from executors.gateway.admission import Slot
from executors.gateway.inflight_request import InflightRequest
from executors.gateway.model_meter import Outcome
from executors.gateway.proxy import Proxy
from executors.gateway.stage_bodies import final_stage_body, stage_body, stage_outputs_of
from executors.gateway.wire.engine_pool import EnginePool
from loadtests.gateway_processes import cpu_s, said_port
from streams.tools.up.host_resources import free_port
from topics.codec import encode
from topics.records import Endpoint, RequestKind, RouteGroup, Routes
from topics.routing import Hop, RoutePath, Stage
from topics.storage.checked_lines import checked_line
from topics.time_base import TimeBase

WAYS = ("planned", "own counts", "queues asked")
COUNTS = {"image": 2, "llm": 4, "all": 2}
SECONDS = {"image": 0.0, "llm": 0.0, "image,llm": 0.0}
_CONCURRENT = 16
_MODEL = "omni"
_IMAGE, _LLM, _BOTH = Hop("image", ("image",)), Hop("llm", ("llm",)), Hop("all", ("image", "llm"))
_PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
_TEXT = {"type": "text", "text": "word " * 50}


class ByQueues:
    """Routing by the shortest queue at each hop, instead of `Proxy._answer_by_stages`.

    ask: whether queues are read from the stages; otherwise this gateway's own requests are counted.
    """

    def __init__(self, ask: bool) -> None:
        self._ask = ask
        self._in_flight = Counter[Endpoint]()
        self._draw = random.Random(1)

    async def along(
        self, proxy: Proxy, request: InflightRequest, slot: Slot, way: ComponentPath
    ) -> Outcome:
        """Serve `request` by the shortest queues. The sampled path is used only for its list of
        components.
        """
        left = sorted({component for hop in way.hops for component in hop.runs})
        slot.release()
        routes = proxy._table.routers[request.call.model].routes
        assert routes is not None
        stages = {stage.name: stage.endpoints for stage in routes.groups[0].stages}
        outputs: dict[str, Any] = {}
        while True:
            hops = [_BOTH, _IMAGE] if len(left) == 2 else [_LLM]
            options = [(hop, end) for hop in hops for end in stages[hop.stage]]
            lengths = await asyncio.gather(*(self._queue(proxy, end) for _, end in options))
            shortest = [one for one, n in zip(options, lengths, strict=True) if n == min(lengths)]
            hop, end = self._draw.choice(shortest)  # random choice among the shortest queues
            left = [component for component in left if component not in hop.runs]
            self._in_flight[end] += 1
            try:
                if not left:
                    return await proxy._answer(
                        request, end, final_stage_body(request.call, hop, outputs)
                    )
                raw = await proxy._fetch(request, end, stage_body(request.call, hop, outputs))
                outputs |= stage_outputs_of(raw) or {}
            finally:
                self._in_flight[end] -= 1

    async def _queue(self, proxy: Proxy, end: Endpoint) -> int:
        if not self._ask:
            return self._in_flight[end]
        head = b"GET /metrics HTTP/1.1\r\nHost: %s\r\n\r\n" % end.address.encode()
        answer = await proxy._engines._pool.send(end.address, head, b"")
        return parse_load((await answer.read()).decode()).in_flight


def serve(way: str, options: list[str]) -> int:
    """Run a gateway that routes by the method `way`."""
    if way != "planned":
        chooser = ByQueues(way == "queues asked")

        async def along(
            proxy: Proxy, request: InflightRequest, slot: Slot, path: ComponentPath
        ) -> Outcome:
            return await chooser.along(proxy, request, slot, path)

        Proxy._answer_by_stages = along  # type: ignore[method-assign]
    return gateway(options)


@contextmanager
def started() -> Iterator[dict[str, tuple[str, int]]]:
    """The (address, pid) of the gateway of each method. Every process is ended afterwards."""
    processes: list[subprocess.Popen[str]] = []

    def run(*words: str) -> subprocess.Popen[str]:
        command = (sys.executable, "-m", *words)
        processes.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        )
        return processes[-1]

    with tempfile.TemporaryDirectory() as folder:
        try:
            stages: dict[str, list[Endpoint]] = {}
            for name, count in COUNTS.items():
                for number in range(count):
                    port = free_port()
                    run(
                        "executors.engines.simulated.stage", "--model", _MODEL, "--seconds",
                        json.dumps(SECONDS), "--port", str(port), "--max-len", "1000",
                    )  # fmt: skip
                    end = Endpoint(f"{name}-{number}", f"127.0.0.1:{port}")
                    stages.setdefault(name, []).append(end)
            for end in (end for ends in stages.values() for end in ends):
                _wait_for(end.address)
            base = TimeBase(1.0, 0, time.monotonic_ns()).format()
            found = {}
            for way in WAYS:
                home = Path(folder, way.replace(" ", "-"))
                home.mkdir()
                (home / "routes.jsonl").write_bytes(checked_line(encode(_routes(stages))))
                made = run(
                    "loadtests.path_routing_bench", "--serve", way, "--broker", "127.0.0.1:9",
                    "--time-base", base, "--state-dir", str(home), "--drain-s", "1",
                )  # fmt: skip
                found[way] = f"127.0.0.1:{said_port(made)}", made.pid
            yield found
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(10)


def _wait_for(address: str, seconds: float = 30.0) -> None:
    """Wait until `address` ("host:port") takes connections; raises TimeoutError after `seconds`."""
    host, port = address.rsplit(":", 1)
    until = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, int(port)), 1.0).close()
        except OSError:
            if time.monotonic() > until:
                raise TimeoutError(f"nothing listens on {address}") from None
            time.sleep(0.05)
        else:
            return


def _routes(stages: dict[str, list[Endpoint]]) -> Routes:
    group = RouteGroup(
        "cell",
        4.0,
        stages=tuple(Stage(name, tuple(ends)) for name, ends in stages.items()),
        paths=(
            RoutePath("text", 2.0, (_LLM,)),
            RoutePath("photo", 1.0, (_IMAGE, _LLM)),
            RoutePath("photo", 1.0, (_BOTH,)),
        ),
    )
    kinds = (RequestKind("text"), RequestKind("photo", ("image",)))
    return Routes(_MODEL, 1, 1, 0, 20_000.0, 1_000.0, (group,), kinds=kinds)


async def measure(gateways: dict[str, tuple[str, int]], requests: int, rounds: int) -> None:
    """Print requests per CPU-second, the median over the rounds."""
    pool = EnginePool(connect_s=5.0, idle_s=2.0, answer_bytes=1 << 20)
    found: dict[str, list[float]] = {way: [] for way in gateways}
    for turn in range(rounds + 1):
        for way, (address, pid) in gateways.items():
            before = cpu_s((pid,))
            await _send(pool, address, requests)
            if turn:  # The first round opens connections.
                found[way].append(requests / max(0.01, cpu_s((pid,)) - before))
    pool.close()
    rates = {way: statistics.median(of) for way, of in found.items()}
    print(f"{'way':14} {'requests per CPU-second':>24} {'of planned':>11}")
    for way, rate in rates.items():
        print(f"{way:14} {rate:24.0f} {rate / rates['planned']:11.2f}")


async def _send(pool: EnginePool, address: str, requests: int) -> None:
    bodies = [
        json.dumps(
            {"model": _MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": content}]}
        ).encode()
        for content in ([_TEXT], [_PART, _TEXT])
    ]
    left = iter(range(requests))

    async def client() -> None:
        for number in left:
            body = bodies[number % 2]
            head = (
                f"POST /v1/chat/completions HTTP/1.1\r\nHost: {address}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            ).encode()
            answer = await pool.send(address, head, body)
            text = await answer.read()
            if answer.status != 200:
                raise SystemExit(f"{address} answered {answer.status}: {text[:200]!r}")

    await asyncio.gather(*(client() for _ in range(_CONCURRENT)))


def main() -> int:
    """Print the table, or run one of the gateways."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=2000, help="a round and way (2000)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", choices=WAYS, help=argparse.SUPPRESS)
    args, rest = parser.parse_known_args()
    if args.serve:
        return serve(args.serve, rest)
    if rest:
        parser.error(f"unknown: {' '.join(rest)}")
    with started() as gateways, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(measure(gateways, args.requests, args.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
