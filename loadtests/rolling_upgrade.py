"""A rollout under load: `python -m loadtests.rolling_upgrade [--to same|slow] [--streams 1000]`.

Two controllers, an executor, two gateways and simulated engines run as processes at the speed of
real time. Four combos fill an owned node, and `spare: none` rents nothing. Clients stream answers
all the time. After a quarter of the streams, the configuration names another engine, and both
controllers are killed and restarted with it. "same" is an equal engine, which must replace all
combos; "slow" is one without FP8, which must be taken back. No stream may break. JSON keys:

    streams, broken, attained_before, attained_during, engines, rollout_s, verdict
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import random
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import ClientError, ClientSession, ClientTimeout

from loadtests.chaos.stack import CONTROLLERS, GATEWAYS, Stack
from loadtests.chaos.watch import Topics
from streams.broker.broker_reach import BrokerUnreachable
from streams.broker.child_broker import own_broker
from streams.broker.topic_admin import ensure_topics
from streams.files.user_errors import UserError
from streams.tools.up.host_resources import remove_topics
from topics.reason_codes import ReasonCode

_CONFIG = """mode: act
defaults: {{percentile: 95, utilization: 0.85}}
policy: {{start_timeout: 2m, local_window: 1m, drain_timeout: 30s}}
regions: {{east: {{l40s: {{gpu: L40S, per_node: 4, nodes: 1, owned: true}}}}}}
models:
  chat: {{source: meta-llama/Llama-3.1-8B-Instruct, engine: {engine}, max_len: 2048,
         slo: {{ttft: {ttft_ms:.0f}ms, tpot: {tpot_ms:.0f}ms}}, min: 4,
         workload: {{req_per_s: 2, input: 64, output: 64}},
         rollout: {{watch: 10s, spare: none, canary: {{within: 8m}}}}}}
engines:
  first: {{args: [--quantization=fp8]}}
  same: {{args: [--quantization=fp8, --enable-prefix-caching]}}
  slow: {{}}
"""
_TTFT_MS, _TPOT_MS = 2000.0, 100.0
_READY_S, _END_S = 240.0, 900.0
_ENDS = (ReasonCode.ROLLOUT_DONE, ReasonCode.ROLLOUT_TAKEN_BACK)


@dataclass(slots=True)
class Clients:
    """Clients of both gateways. streams: (attained, whether the rollout had begun) of each ended
    stream; broken: reasons of the others."""

    ports: list[int]
    began: bool = False
    running: int = 0
    streams: list[tuple[bool, bool]] = field(default_factory=list)
    broken: Counter[str] = field(default_factory=Counter)

    async def run(self, req_per_s: float) -> None:
        """Start streams at random times until cancelled; then wait for those that run."""
        rng, tasks = random.Random(57), set[asyncio.Task[None]]()
        async with ClientSession(timeout=ClientTimeout(total=120.0)) as session:
            try:
                while True:
                    await asyncio.sleep(rng.expovariate(req_per_s))
                    port = self.ports[rng.randrange(len(self.ports))]
                    task = asyncio.create_task(self._stream(session, port, rng.randint(32, 96)))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
            finally:
                await asyncio.gather(*tasks)

    async def _stream(self, session: ClientSession, port: int, tokens: int) -> None:
        body = {
            "model": "chat", "prompt": "a " * 64, "max_tokens": tokens, "ignore_eos": True,
            "stream": True,
        }  # fmt: skip
        sent_s, times, is_whole, why = time.monotonic(), list[float](), False, "no end"
        try:
            url = f"http://127.0.0.1:{port}/v1/completions"
            async with session.post(url, json=body) as answer:
                if answer.status != 200:
                    why = f"status {answer.status}"
                async for line in answer.content:
                    if line.startswith(b"data: [DONE]"):
                        is_whole = answer.status == 200
                    elif line.startswith(b'data: {"error"'):
                        why = "error event"
                        break
                    elif line.startswith(b"data:"):
                        times.append(time.monotonic())
        except (ClientError, TimeoutError) as error:
            why = type(error).__name__
        if not is_whole or len(times) < 2:
            self.broken[why] += 1
            return
        ttft_ms = 1000.0 * (times[0] - sent_s)
        tpot_ms = 1000.0 * (times[-1] - times[0]) / (len(times) - 1)
        self.streams.append((ttft_ms <= _TTFT_MS and tpot_ms <= _TPOT_MS, self.began))

    def attained(self, began: bool) -> float:
        """Share of streams within both limits, before or since the begin of the rollout."""
        found = [ok for ok, during in self.streams if during is began]
        return sum(found) / max(1, len(found))


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 all held, 1 a stream broke or the rollout ended otherwise, 2 the run failed."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.rolling_upgrade")
    parser.add_argument("--to", choices=("same", "slow"), default="same")
    parser.add_argument("--streams", type=int, default=1000, help="at least (1000)")
    parser.add_argument("--rate", type=float, default=8.0, help="streams started each second (8)")
    parser.add_argument(
        "--broker", default="", metavar="kafka://HOST:PORT", help="default: embedded"
    )
    options = parser.parse_args(argv)
    logging.disable(logging.CRITICAL)
    try:
        return asyncio.run(_run(options))
    except (UserError, BrokerUnreachable, TimeoutError) as error:
        print(f"rolling_upgrade: {error or 'too slow'}", file=sys.stderr)
        return 2


async def _run(options: argparse.Namespace) -> int:
    prefix = f"upgrade-{secrets.token_hex(4)}."
    async with contextlib.AsyncExitStack() as closing:
        folder = closing.enter_context(tempfile.TemporaryDirectory(prefix="shoal-upgrade-"))
        embedded = not options.broker
        bootstrap = options.broker.removeprefix("kafka://") or await closing.enter_async_context(
            own_broker(prefix)
        )
        await ensure_topics(bootstrap, prefix)
        if not embedded:
            closing.push_async_callback(remove_topics, bootstrap, prefix)
        config = _CONFIG.format(engine="first", ttft_ms=_TTFT_MS, tpot_ms=_TPOT_MS)
        stack = Stack(Path(folder), bootstrap, prefix, config, CONTROLLERS, ("executor-east",))
        closing.push_async_callback(stack.close)
        topics, tasks = Topics(), list[asyncio.Task[None]]()
        tasks.append(asyncio.create_task(topics.follow(stack, embedded)))
        await stack.open()
        await _until(lambda: _routed(topics) == ["first"] * 4, _READY_S)
        clients = Clients([stack.ports[name] for name in GATEWAYS])
        load = asyncio.create_task(clients.run(options.rate))
        await _until(lambda: len(clients.streams) >= options.streams // 4, _END_S)
        stack.path.write_text(_CONFIG.format(engine=options.to, ttft_ms=_TTFT_MS, tpot_ms=_TPOT_MS))
        began_s, clients.began = time.monotonic(), True
        await asyncio.gather(*(stack.restart(name) for name in CONTROLLERS))
        goal = [options.to if options.to == "same" else "first"] * 4
        await _until(lambda: bool(_verdict(topics)) and _routed(topics) == goal, _END_S)
        rollout_s = time.monotonic() - began_s
        await _until(lambda: len(clients.streams) >= options.streams, _END_S)
        for task in (load, *tasks):
            task.cancel()
        await asyncio.gather(load, *tasks, return_exceptions=True)
        verdict = _verdict(topics)
        found = {
            "streams": len(clients.streams) + clients.broken.total(),
            "broken": dict(clients.broken),
            "attained_before": round(clients.attained(False), 4),
            "attained_during": round(clients.attained(True), 4),
            "engines": _routed(topics),
            "rollout_s": round(rollout_s, 1),
            "verdict": verdict,
        }
        print(json.dumps(found, indent=1))
        loss = clients.attained(False) - clients.attained(True)
        is_right = ("taken back" in verdict) == (options.to == "slow")
        return 0 if not clients.broken and loss <= 0.01 and is_right else 1


def _verdict(topics: Topics) -> str:
    """The reason of the decision that ended the rollout, "" before."""
    ends = (one.reason for _, one in topics.decisions if set(_ENDS) & set(one.codes))
    return next(ends, "")


def _routed(topics: Topics) -> list[str]:
    """The engines of all instances with a route."""
    engine_of = {i.group: i.engine for s in topics.statuses.values() for i in s.instances}
    routes = topics.routes.get("chat")
    groups = routes.groups if routes is not None else ()
    return sorted(engine_of.get(group.group, "").partition("@")[0] for group in groups)


async def _until(reached: Callable[[], bool], most_s: float) -> None:
    async with asyncio.timeout(most_s):
        while not reached():
            await asyncio.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
