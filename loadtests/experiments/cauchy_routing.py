"""Comparison of routing policies in simulation, on combos of unequal instances.

The simulated gateway routes by the code of the real one (`autoscaler.serving.request_router`).
Inside a combo it compares opportunistic scheduling with round robin (Cauchy, Table 3: 6-13% lower
latency). Between combos it compares goodput weights with equal shares (the paper: up to 25% lower).
Arrivals are Poisson and lengths log-normal. A combo's goodput is its requests/s with a constant 64
requests in it. The load is a share of that goodput.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from autoscaler.serving.engine_setup import engine_setup
from autoscaler.serving.routing_policies import AcrossCombos, RoutingPolicy, WithinCombo
from autoscaler.simulation.component_stage import AnyEngine
from autoscaler.simulation.engine_process import SimEngine
from autoscaler.simulation.event_queue import EventQueue
from autoscaler.simulation.gateway_process import GatewayLimits, SimGateway
from autoscaler.simulation.simulated_request import Call, Ending
from loadtests.results.entry import Figures
from topics.records import Endpoint, RouteGroup, Routes

_SOURCE = "meta-llama/Llama-3.1-8B-Instruct"
_MODEL = "chat"
_MAX_LEN = 16_384
_CLOSED = 64


@dataclass(frozen=True)
class Shape:
    """One combo: GPU types of its instances, by role."""

    prefill: tuple[str, ...] = ()
    decode: tuple[str, ...] = ()
    aggregated: tuple[str, ...] = ()


INSIDE: dict[str, tuple[Shape, ...]] = {
    "1P1D": (Shape(("H100-SXM",), ("L40S",)),),
    "1P2D": (Shape(("H100-SXM",), ("L40S", "L40S")),),
    "1P3D": (Shape(("H100-SXM",), ("L40S", "L40S", "L4")),),
    "1P1D H800 H20": (Shape(("H800-SXM",), ("H20",)),),
    "1P2D H800 H20": (Shape(("H800-SXM",), ("H20", "H20")),),
    "1P3D H800 H20": (Shape(("H800-SXM",), ("H20", "H20", "H20")),),
}
BETWEEN: dict[str, tuple[Shape, ...]] = {
    "H100+L40S+L4": tuple(Shape(aggregated=(gpu,)) for gpu in ("H100-SXM", "L40S", "L4")),
    "1P1D+L40S": (Shape(("H100-SXM",), ("H100-SXM",)), Shape(aggregated=("L40S",))),
}


@dataclass
class World:
    """A gateway, its engines, and the finished requests."""

    events: EventQueue
    gateway: SimGateway
    ended: list[Call]


def world(shapes: Sequence[Shape], weights: Sequence[float], policy: RoutingPolicy) -> World:
    """Return a world with all engines running and routed."""
    events, groups = EventQueue(), []
    engines: dict[str, AnyEngine] = {}
    ended: list[Call] = []

    def started(role: str, gpus: Sequence[str]) -> tuple[Endpoint, ...]:
        found = []
        for gpu in gpus:
            address = f"node:{len(engines) + 1}"
            setup = engine_setup(_SOURCE, gpu, 1, role, _MAX_LEN)
            engines[address] = SimEngine(setup, events, address)
            found.append(Endpoint(f"{role}-{gpu}-{len(engines)}", address))
        return tuple(found)

    for index, (shape, weight) in enumerate(zip(shapes, weights, strict=True)):
        group = RouteGroup(
            f"g{index}",
            weight,
            started("aggregated", shape.aggregated),
            started("prefill", shape.prefill),
            started("decode", shape.decode),
        )
        groups.append(group)
    limits = GatewayLimits(policy=policy)
    gateway = SimGateway("g", {_MODEL: _MAX_LEN}, events, engines, ended.append, limits)
    gateway.apply(Routes(_MODEL, 1, 1, 0, 2000.0, 60.0, tuple(groups)))
    return World(events, gateway, ended)


def call(rng: random.Random, number: int, at_ms: float) -> Call:
    """Return a request of about 1,000 tokens in and 200 out."""
    return Call(
        number,
        _MODEL,
        at_ms,
        min(8000, max(8, int(rng.lognormvariate(6.6, 0.8)))),
        min(2000, max(2, int(rng.lognormvariate(5.0, 0.8)))),
    )


def goodput(shape: Shape, requests: int = 400) -> float:
    """Requests/s that the combo finishes under constant backlog."""
    here = world((shape,), (1.0,), RoutingPolicy(inside=WithinCombo.ROUND_ROBIN))
    rng = random.Random(1)
    for number in range(_CLOSED):
        here.gateway.receive(call(rng, number, 0.0))
    sent = _CLOSED
    while len(here.ended) < requests:
        here.events.run(here.events.now_ms + 20.0)
        while sent < len(here.ended) + _CLOSED:
            here.gateway.receive(call(rng, sent, here.events.now_ms))
            sent += 1
        here.events.at(here.events.now_ms + 20.0, lambda: None)
    return 1000.0 * len(here.ended) / here.events.now_ms


def mean_s(
    shapes: Sequence[Shape],
    weights: Sequence[float],
    policy: RoutingPolicy,
    load: float,
    requests: int,
    seed: int,
) -> float:
    """Mean end-to-end latency of one run, in s."""
    here = world(shapes, weights, policy)
    rng = random.Random(seed)
    rate, at_ms = load * sum(weights) / 1000.0, 0.0
    for number in range(requests):
        at_ms += rng.expovariate(rate)
        made = call(rng, number, at_ms)
        here.events.at(at_ms, lambda made=made: here.gateway.receive(made))
    here.events.run(at_ms + 600_000.0)
    served = [made for made in here.ended if made.ending is Ending.SERVED]
    if len(served) < requests:
        raise SystemExit(f"{requests - len(served)} of {requests} requests were not served")
    return statistics.fmean((made.end_ms or 0.0) - made.arrival_ms for made in served) / 1000.0


@cache
def weights_of(shapes: tuple[Shape, ...]) -> tuple[float, ...]:
    """The goodput of each combo."""
    return tuple(goodput(shape) for shape in shapes)


def compared(
    cases: dict[str, tuple[Shape, ...]],
    base: RoutingPolicy,
    ours: RoutingPolicy,
    load: float,
    requests: int,
    seed: int,
) -> dict[str, dict[str, float]]:
    """Mean latencies of one run under both policies."""
    found = {}
    for name, shapes in cases.items():
        weights = weights_of(shapes)
        found[name] = {
            key: mean_s(shapes, weights, policy, load, requests, seed)
            for key, policy in (("base_s", base), ("ours_s", ours))
        }
    return found


def measure(seed: int) -> Figures:
    """Mean end-to-end latencies at 70% of the goodput."""
    basic = RoutingPolicy(AcrossCombos.GOODPUT, WithinCombo.ROUND_ROBIN)
    inside = RoutingPolicy(AcrossCombos.GOODPUT, WithinCombo.OPPORTUNISTIC)
    equal = RoutingPolicy(AcrossCombos.EQUAL, WithinCombo.ROUND_ROBIN)
    return {
        "inside": compared(INSIDE, basic, inside, 0.7, 1500, seed),
        "between": compared(BETWEEN, equal, basic, 0.7, 1500, seed),
    }
