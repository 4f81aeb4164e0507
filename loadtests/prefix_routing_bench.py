"""Routing by prefix against round robin and against one shared cache, on traces with block hashes.

    python -m loadtests.prefix_routing_bench TRACE [--instances N] [--gpu NAME] [--speed X]

Simulated engines of an 8B model serve the trace behind one simulated gateway, once for each policy.
`of shared` compares the hit rate with one cache of the room of all instances, which every request
uses in the order of arrival. `hot s` is the longest time for which the requests in flight at one
instance stayed above 1.5 times the mean, read each second; `hot minute` is the same for means over
a minute, as the highest ratio. --speed divides the times between arrivals.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from autoscaler.serving.block_cache import BlockCache
from autoscaler.serving.engine_setup import EngineSetup, engine_setup
from autoscaler.serving.routing_policies import RoutingPolicy, WithinCombo
from autoscaler.simulation.component_stage import AnyEngine
from autoscaler.simulation.engine_process import SimEngine
from autoscaler.simulation.event_queue import EventQueue
from autoscaler.simulation.gateway_process import GatewayLimits, SimGateway
from autoscaler.simulation.simulated_request import Call
from streams.tools.replay.traces import Trace, load_trace
from topics.records import Endpoint, RouteGroup, Routes

_SOURCE = "meta-llama/Llama-3.1-8B-Instruct"
_MODEL = "chat"
_MAX_LEN = 131_072
HOT = 1.5
"""Multiple of the mean load above which an instance is hot."""
_MIN_LOAD = 1.0  # mean requests in flight below which no instance counts as hot
_MINUTE_S = 60
_REPORTS_PER_S = 4  # load reports of executors


@dataclass
class Run:
    """One policy on one trace. loads: requests in flight by instance, one row a second."""

    calls: list[Call]
    loads: list[list[int]] = field(default_factory=list)

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens that came from prefix caches."""
        tokens = sum(call.input_tokens for call in self.calls)
        return sum(call.cached_tokens for call in self.calls) / tokens

    def ttft_s(self, percent: float) -> float:
        """A percentile of the TTFT, in s."""
        waits = [(call.first_ms or np.inf) - call.arrival_ms for call in self.calls]
        return float(np.percentile(waits, percent)) / 1000.0

    def hot_s(self) -> int:
        """Longest time in s for which one instance was hot."""
        longest = 0
        loads = np.array(self.loads, dtype=float)
        mean = loads.mean(axis=1)
        for own in loads.T:
            run = 0
            for is_hot in own > HOT * np.maximum(mean, _MIN_LOAD):
                run = run + 1 if is_hot else 0
                longest = max(longest, run)
        return longest

    def hot_minute(self) -> float:
        """Highest mean load of an instance over a minute, as a multiple of the mean instance's."""
        loads = np.array(self.loads, dtype=float)
        sums = np.cumsum(np.vstack([np.zeros(loads.shape[1]), loads]), axis=0)
        minutes = (sums[_MINUTE_S:] - sums[:-_MINUTE_S]) / _MINUTE_S
        mean = np.maximum(minutes.mean(axis=1), _MIN_LOAD)
        return float((minutes.max(axis=1) / mean).max())


def requests(trace: Trace, speed: float) -> list[Call]:
    """The requests of `trace` that fit the model."""
    columns = trace.arrivals_ms, trace.input_tokens, trace.output_tokens, trace.blocks
    return [
        Call(number, _MODEL, at_ms / speed, tokens, max(1, output), blocks=blocks)
        for number, (at_ms, tokens, output, blocks) in enumerate(zip(*columns, strict=True))
        if tokens + output <= _MAX_LEN
    ]


def shared_hit_rate(calls: Sequence[Call], blocks: int, block_tokens: int) -> float:
    """Hit rate of one cache of `blocks` blocks for all requests, one after the other."""
    cache, hits = BlockCache(blocks), 0
    for call in calls:
        found = cache.match(call.blocks, (call.input_tokens - 1) // block_tokens)
        hits += len(found) * block_tokens
        cache.hold(found)
        needed = -(-(call.input_tokens + call.output_tokens) // block_tokens)
        held = found + cache.take(needed - len(found))
        for block, value in zip(held, call.blocks, strict=False):
            cache.store(block, value)
        cache.give_back(held)
    return hits / sum(call.input_tokens for call in calls)


def simulate(
    calls: Sequence[Call],
    setup: EngineSetup,
    instances: int,
    inside: WithinCombo,
    gateways: int = 1,
) -> Run:
    """Serve `calls` on `instances` engines, routed by `inside`. Gateways take turns."""
    events = EventQueue()
    engines: dict[str, AnyEngine] = {}
    own = [replace(call) for call in calls]
    for number in range(instances):
        engines[f"node:{number}"] = SimEngine(setup, events, f"node:{number}")
    ends = tuple(Endpoint(f"chat-{at}", at) for at in engines)
    limits = GatewayLimits(policy=RoutingPolicy(inside=inside))
    routes = Routes(_MODEL, 1, 1, 0, 2000.0, 60.0, (RouteGroup("chat", 1.0, ends),))
    several = [
        SimGateway(f"g{number}", {_MODEL: _MAX_LEN}, events, engines, lambda _: None, limits)
        for number in range(gateways)
    ]
    for gateway in several:
        gateway.apply(routes)
    found = Run(own)
    for number, call in enumerate(own):
        to = several[number % gateways]
        events.at(call.arrival_ms, partial(to.receive, call))
    for step in range(1, _REPORTS_PER_S * int(own[-1].arrival_ms / 1000.0) + 1):
        events.run(1000.0 * step / _REPORTS_PER_S)
        for gateway in several if gateways > 1 else ():
            router = gateway._frontends[_MODEL].router
            for end, engine in zip(ends, engines.values(), strict=True):
                router.report_load(end, engine.in_flight, 0)
        if step % _REPORTS_PER_S == 0:
            found.loads.append([one.in_flight for one in engines.values()])
    events.run(own[-1].arrival_ms + 3_600_000.0)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Print one row for each policy."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.prefix_routing_bench")
    parser.add_argument("trace", type=Path)
    parser.add_argument("--instances", type=int, default=4)
    parser.add_argument("--gpu", default="H100-SXM")
    parser.add_argument("--speed", type=float, default=1.0)
    parser.add_argument("--gateways", type=int, default=1)
    parser.add_argument("--inside", choices=[*WithinCombo], action="append")
    options = parser.parse_args(argv)
    trace = load_trace(options.trace)
    calls = requests(trace, options.speed)
    setup = engine_setup(_SOURCE, options.gpu, 1, "aggregated", _MAX_LEN)
    setup = replace(setup, limits=replace(setup.limits, block_tokens=trace.block_tokens))
    blocks = -(-setup.limits.kv_tokens // trace.block_tokens)
    shared = shared_hit_rate(calls, options.instances * blocks, trace.block_tokens)
    print(f"{len(calls)} requests, {options.instances} instances of {blocks} blocks")
    print(f"one shared cache: {shared:.1%}")
    print("policy           hits of shared  p50 TTFT  p95 TTFT  hot s hot minute")
    for inside in options.inside or (WithinCombo.ROUND_ROBIN, WithinCombo.PREFIX):
        run = simulate(calls, setup, options.instances, WithinCombo(inside), options.gateways)
        print(
            f"{inside:14} {run.hit_rate:6.1%} {run.hit_rate / shared:9.1%} {run.ttft_s(50):8.2f}s "
            f"{run.ttft_s(95):8.2f}s {run.hot_s():6} {run.hot_minute():10.2f}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
