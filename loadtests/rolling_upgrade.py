"""A rollout under load: `python -m loadtests.rolling_upgrade [--to same|slow] [--streams 1000]`.

Two controllers, an executor, two gateways and simulated engines run as processes at the speed of
real time. Four combos fill an owned node, and `spare: none` rents nothing. Sessions of Locust
stream answers all the time. After a quarter of the streams, the configuration names another engine,
and both controllers are killed and restarted with it. "same" is an equal engine, which must replace
all combos; "slow" is one without FP8, which must be taken back. No stream may break. JSON keys:

    streams, broken, attained_before, attained_during, engines, rollout_s, verdict
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import math
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from loadtests.chaos.stack import CONTROLLERS, GATEWAYS, Stack
from loadtests.chaos.watch import Topics
from loadtests.session_load import Request, SessionLoad
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


def attained(requests: Iterable[Request], since_s: float, until_s: float) -> float:
    """Share of whole streams within both limits, of those that ended in this time."""
    found = [
        one.first_ms <= _TTFT_MS and one.last_ms - one.first_ms <= _TPOT_MS * max(1, one.tokens - 1)
        for one in requests
        if not one.why and since_s <= one.sent_s + one.took_s < until_s
    ]
    return sum(found) / max(1, len(found))


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 all held, 1 a stream broke or the rollout ended otherwise, 2 the run failed."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.rolling_upgrade")
    parser.add_argument("--to", choices=("same", "slow"), default="same")
    parser.add_argument("--streams", type=int, default=1000, help="at least (1000)")
    parser.add_argument("--users", type=int, default=50, help="sessions at a time (50)")
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
        gateways = {name: f"http://127.0.0.1:{stack.ports[name]}" for name in GATEWAYS}
        log = Path(folder) / "locust.log"
        load = SessionLoad(gateways, ("chat",), options.users, log, tokens=(32, 96), seed=57)
        tasks.append(asyncio.create_task(load.run()))
        await _until(lambda: len(load.requests) >= options.streams // 4, _END_S)
        stack.path.write_text(_CONFIG.format(engine=options.to, ttft_ms=_TTFT_MS, tpot_ms=_TPOT_MS))
        began_s = time.monotonic()
        await asyncio.gather(*(stack.restart(name) for name in CONTROLLERS))
        goal = [options.to if options.to == "same" else "first"] * 4
        await _until(lambda: bool(_verdict(topics)) and _routed(topics) == goal, _END_S)
        rollout_s = time.monotonic() - began_s
        await _until(lambda: len(load.requests) >= options.streams, _END_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        verdict, before = _verdict(topics), attained(load.requests, 0.0, began_s)
        during = attained(load.requests, began_s, math.inf)
        broken = Counter(one.why for one in load.requests if one.why)
        found = {
            "streams": len(load.requests),
            "broken": dict(broken),
            "attained_before": round(before, 4),
            "attained_during": round(during, 4),
            "engines": _routed(topics),
            "rollout_s": round(rollout_s, 1),
            "verdict": verdict,
        }
        print(json.dumps(found, indent=1))
        if differs := load.unread():
            raise UserError(differs)
        loss = before - during
        is_right = ("taken back" in verdict) == (options.to == "slow")
        return 0 if not broken and loss <= 0.01 and is_right else 1


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
