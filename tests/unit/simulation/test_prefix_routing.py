"""Routing by prefix in simulation, on conversations whose blocks do not fit all caches."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from autoscaler.serving.engine_setup import engine_setup
from autoscaler.serving.routing_policies import WithinCombo
from autoscaler.simulation.simulated_request import Call
from loadtests.prefix_routing_bench import Run, shared_hit_rate, simulate

_BLOCK = 256
_CHATS, _TURNS, _TURN_BLOCKS, _SYSTEM = 150, 5, 12, (1, 2)


def _conversations(seed: int) -> list[Call]:
    """Chats with one system prompt. Each turn begins with the turns before it."""
    rng, found = random.Random(seed), []
    for chat in range(_CHATS):
        at_ms = rng.uniform(0.0, 240_000.0)
        blocks = list(_SYSTEM)
        for turn in range(_TURNS):
            first = 1000 * chat + 100 * turn + 10
            blocks += range(first, first + _TURN_BLOCKS)
            tokens = len(blocks) * _BLOCK + rng.randrange(1, _BLOCK)
            found.append(Call(0, "chat", at_ms, tokens, 100, blocks=tuple(blocks)))
            at_ms += rng.expovariate(1.0 / 8_000.0)
    found.sort(key=lambda call: call.arrival_ms)
    return [replace(call, id=number) for number, call in enumerate(found)]


def _runs(instances: int, gateways: int = 1) -> tuple[float, Run, Run]:
    """(hit rate of one shared cache, by prefix, round robin)."""
    calls = _conversations(53)
    setup = engine_setup("meta-llama/Llama-3.1-8B-Instruct", "L40S", 1, "aggregated", 32_768)
    limits = replace(setup.limits, kv_tokens=340_000 // instances, block_tokens=_BLOCK)
    setup = replace(setup, limits=limits)
    shared = shared_hit_rate(calls, 340_000 // _BLOCK, _BLOCK)
    ways = WithinCombo.PREFIX, WithinCombo.ROUND_ROBIN
    by_prefix, in_turn = (simulate(calls, setup, instances, way, gateways) for way in ways)
    return shared, by_prefix, in_turn


@pytest.mark.parametrize(
    ("instances", "gateways", "least"), [(4, 1, 0.85), (8, 1, 0.85), (8, 3, 0.7)]
)
def test_routing_by_prefix_approaches_one_shared_cache(
    instances: int, gateways: int, least: float
) -> None:
    """Several gateways do not know each other's prompts."""
    shared, by_prefix, in_turn = _runs(instances, gateways)
    assert all(call.first_ms is not None for call in by_prefix.calls)
    assert 0.3 < shared < 0.72  # the endless cache reaches 0.73
    assert by_prefix.hit_rate >= least * shared
    assert in_turn.hit_rate < 0.6 * by_prefix.hit_rate
    assert by_prefix.ttft_s(95) < in_turn.ttft_s(95)
    assert by_prefix.hot_s() < 60
