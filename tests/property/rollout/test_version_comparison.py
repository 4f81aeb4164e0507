"""Any two versions under any load: equal ones are rarely called worse, slow ones always."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.domain.rollout_policy import COMPARED
from autoscaler.domain.token_times import TokenTimes
from autoscaler.estimate.request_kinds import VersionBlock
from autoscaler.estimate.sequential_sign_test import SignTest
from autoscaler.rollout.version_comparison import LEVEL, Arm, VersionComparison, begun, with_blocks
from tests.unit.decide.decide_catalogue import AGGREGATED, combo, pool
from topics.sketch import LOWEST, bucket_of
from topics.version_counts import VersionCounts

BLOCKS = 360
COMBO = replace(
    combo("chat", [(AGGREGATED, 1, pool(), 1, 10.0)]),
    token_times=TokenTimes(batch=40.0, tpot_ms=24.0, half_batch=20.0, half_tpot_ms=20.0),
)


@dataclass(frozen=True)
class Setting:
    """A fleet and its traffic. rate: requests/s at the canary. others: instances of the former
    version. swing: relative change of load over half an hour, for both. sticky: share of the noise
    of a block that is left in the next one. spread: standard deviation of the logarithms of single
    requests. errors: share of failed requests of both versions."""

    rate: float
    others: int
    swing: float
    sticky: float
    spread: float
    errors: float
    seed: int


SETTINGS = st.builds(
    Setting,
    st.floats(0.5, 20.0),
    st.integers(1, 8),
    st.floats(0.0, 0.8),
    st.floats(0.0, 0.5),
    st.floats(0.05, 0.6),
    st.sampled_from([0.0, 0.01, 0.1]),
    st.integers(0, 10**9),
)


def compared(world: Setting, slower: float) -> VersionComparison:
    """The comparison at its end. slower: ratio of the times of the new version."""
    rng = random.Random(world.seed)
    arms = Arm((COMBO,)), Arm((COMBO,) * world.others)
    known, shared = begun(COMPARED), 0.0
    for at in range(BLOCKS):
        wave = 1.0 + world.swing * math.sin(at / 90.0)
        shared = world.sticky * shared + rng.gauss(0.0, 0.1)
        block = {
            name: counts(world, rng, instances * world.rate * wave, wave * math.exp(shared), times)
            for name, instances, times in (("new", 1, slower), ("old", world.others, 1.0))
        }
        end_ms = (at + 1) * 10_000
        known = with_blocks(known, (VersionBlock(end_ms, block),), "new", "old", arms)
        if known.worst or known.is_fit:
            break
    return known


def counts(
    world: Setting, rng: random.Random, req_per_s: float, load: float, times: float
) -> VersionCounts:
    """Requests of one version in a block. load: factor on the times of both versions."""
    ended = max(0, round(rng.gauss(10.0 * req_per_s, (10.0 * req_per_s) ** 0.5)))
    failed = sum(rng.random() < world.errors for _ in range(ended)) if world.errors else 0
    done = ended - failed

    def logs(value: float, spread: float) -> int:
        mean = bucket_of(value) - LOWEST
        return round(done * mean + rng.gauss(0.0, 25.0 * spread) * done**0.5)

    return VersionCounts(
        completed=done, failed=failed, timed=done, decoded=done,
        ttft_log=logs(300.0 * load * times, 2.0 * world.spread),
        tpot_log=logs(20.0 * load * times, world.spread),
        tokens_log=logs(200.0, 2.0 * world.spread),
        input_tokens=1000 * done, output_tokens=200 * done,
    )  # fmt: skip


def test_equal_versions_are_called_worse_at_most_at_the_declared_level() -> None:
    """Random settings with one seed. Three standard errors above the level would be too many."""
    rng = random.Random(57)
    cases = [
        Setting(
            rng.uniform(0.5, 20.0), rng.randint(1, 8), rng.uniform(0.0, 0.8),
            rng.uniform(0.0, 0.5), rng.uniform(0.05, 0.6), rng.choice([0.0, 0.01, 0.1]), at,
        )
        for at in range(150)
    ]  # fmt: skip
    ends = [compared(case, 1.0) for case in cases]
    worse = sum(end.worst is not None for end in ends)
    assert worse <= len(cases) * LEVEL + 3.0 * math.sqrt(len(cases) * LEVEL)
    assert sum(end.is_fit for end in ends) >= 0.9 * len(cases)


@settings(max_examples=40, deadline=None)
@given(SETTINGS)
def test_a_version_slower_by_30_percent_is_always_noticed(world: Setting) -> None:
    end = compared(world, 1.3)
    assert end.worst is not None and end.worst.name in ("ttft", "tpot")


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 400), st.integers(0, 200))
def test_the_evidence_is_the_mean_of_the_likelihood_ratios(above: int, below: int) -> None:
    """After many trials, it is a bound below the mean that is lower by a factor of at most 2."""
    p = 0.5 + 0.5 * (np.arange(4000) + 0.5) / 4000
    logs = above * np.log(2.0 * p) + below * np.log(2.0 * (1.0 - p))
    mean = float(logs.max() + np.log(np.exp(logs - logs.max()).mean()))
    found = SignTest(above, below).log_evidence
    if above + below <= 400:
        assert math.isclose(found, mean, abs_tol=2e-2)
    elif above > below:
        assert mean - math.log(2.0) - 2e-2 <= found <= mean + 2e-2
