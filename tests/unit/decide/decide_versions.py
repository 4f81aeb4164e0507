"""Requests by version in the simulated worlds of these tests, while versions are compared."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from topics.routing import Routes
from topics.sketch import LOWEST, bucket_of
from topics.version_counts import SentTo

if TYPE_CHECKING:
    from tests.unit.decide.decide_world import World

_SPREADS = {"ttft_log": 15.0, "tpot_log": 6.0, "tokens_log": 20.0}
"""Standard deviations of single requests, in buckets of 4%."""
_SAME = random.Random(57)


@dataclass(frozen=True)
class EngineTraits:
    """Factors on the times, answers and prompts of an engine, and its share of failed requests."""

    times: float = 1.0
    answers: float = 1.0
    prompts: float = 1.0
    errors: float = 0.0


def counts_of(traits: EngineTraits, requests: int, rng: random.Random) -> Mapping[str, int]:
    """The counts of `requests` at an engine, whose logarithms vary normally."""
    failed = sum(rng.random() < traits.errors for _ in range(requests)) if traits.errors else 0
    done = requests - failed
    means = {
        "ttft_log": bucket_of(300.0 * traits.times * traits.prompts),
        "tpot_log": bucket_of(20.0 * traits.times),
        "tokens_log": bucket_of(200.0 * traits.answers),
    }
    sums = {
        key: round(done * (mean - LOWEST) + rng.gauss(0.0, _SPREADS[key]) * done**0.5)
        for key, mean in means.items()
    }
    return {
        "completed": done, "failed": failed, "timed": done, "decoded": done, **sums,
        "input_tokens": round(1000 * traits.prompts * done),
        "output_tokens": round(200 * traits.answers * done),
    }  # fmt: skip


def sent_by_version(w: World, routes: Routes, requests: int) -> SentTo:
    """The counts of `requests`, which the groups share by their weights."""
    if not any(group.version for group in routes.groups):
        return {}
    engine_of = {i.group: i.engine for a in w.applied.values() for i in a.instances}
    total, found = sum(group.weight for group in routes.groups), SentTo()
    for group in routes.groups:
        owed = w.carry.get(group.group, 0.0) + requests * group.weight / total
        mine = math.floor(owed + 1e-9)
        w.carry[group.group] = owed - mine
        traits = w.engines.get(engine_of[group.group], EngineTraits())
        if not group.version:
            continue
        for field, number in counts_of(traits, mine, _SAME).items():
            kind = found.setdefault(f"version:{group.version}:{field}", {"all": 0})
            kind["all"] += number
    return found
