"""Trials whose load or prompts differ decide only in the direction that this cannot explain."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.domain.rollout_policy import COMPARED
from autoscaler.domain.token_times import TokenTimes
from autoscaler.estimate.request_kinds import VersionBlock
from autoscaler.rollout.version_comparison import LEVEL, Arm, Metric, begun, with_blocks
from tests.unit.decide.decide_catalogue import AGGREGATED, combo, pool
from topics.sketch import LOWEST, bucket_of
from topics.version_counts import VersionCounts

COMBO = combo("chat", [(AGGREGATED, 1, pool(), 1, 10.0)])
SLOWER = replace(
    combo("chat", [(AGGREGATED, 1, pool("old"), 1, 10.0)]), ttft_ms=450.0, tpot_ms=30.0
)


def counts(
    done: int = 40, times: float = 1.0, prompts: float = 1.0, failed: int = 0
) -> VersionCounts:
    """Answers with 20 ms per token and 300 ms to the first one, multiplied by `times`."""
    return VersionCounts(
        completed=done, failed=failed, timed=done, decoded=done,
        ttft_log=done * (bucket_of(300.0 * times) - LOWEST),
        tpot_log=done * (bucket_of(20.0 * times) - LOWEST),
        tokens_log=done * (bucket_of(200.0) - LOWEST),
        input_tokens=round(1000 * prompts * done), output_tokens=200 * done,
    )  # fmt: skip


def trials(
    new: VersionCounts, old: VersionCounts, arms: tuple[Arm, Arm] = (Arm((COMBO,)), Arm((COMBO,)))
) -> dict[str, Metric]:
    """The tests after one block."""
    block = VersionBlock(10_000, {"new": new, "old": old})
    known = with_blocks(begun(COMPARED), (block,), "new", "old", arms)
    return {one.name: one for one in known.metrics}


@pytest.mark.parametrize(
    ("new", "worse", "fit"),
    [
        (counts(), (0, 1), (1, 0)),
        (counts(times=1.3), (1, 0), (0, 1)),
        (counts(times=1.3, prompts=2.0), (0, 0), (0, 1)),
        (counts(prompts=0.5), (0, 1), (0, 0)),
        (counts(done=80, times=1.3), (0, 0), (0, 1)),
        (counts(done=20, times=1.3), (1, 0), (0, 0)),
    ],
    ids=["equal", "slower", "longer prompts", "shorter prompts", "more load", "less load"],
)
def test_a_difference_of_load_or_prompts_does_not_decide(
    new: VersionCounts, worse: tuple[int, int], fit: tuple[int, int]
) -> None:
    ttft = trials(new, counts())["ttft"]
    assert (ttft.worse.above, ttft.worse.below) == worse
    assert (ttft.fit.above, ttft.fit.below) == fit


def test_other_instance_types_are_compared_relative_to_their_predictions() -> None:
    arms = Arm((SLOWER,)), Arm((COMBO,))
    for times, is_worse in ((1.5, False), (1.5 * 1.3, True)):
        found = trials(counts(times=times), counts(), arms)
        assert found["tpot"].worse.above == found["ttft"].worse.above == is_worse


def test_a_light_load_hides_no_slow_engine_with_a_prediction() -> None:
    """At half of the load, a token should take three quarters of the time, but takes as long."""
    timed = replace(COMBO, token_times=TokenTimes(32.0, 20.0, 16.0, 15.0))
    arms = Arm((timed,)), Arm((timed,))
    tpot = trials(counts(done=40), counts(done=80), arms)["tpot"]
    assert tpot.fit.above == 0 and tpot.fit.below == 1 and tpot.worse.above == 0


def test_one_failure_ends_a_trial_and_few_requests_decide_nothing_else() -> None:
    found = trials(counts(done=3, failed=1), counts(done=9))
    assert found["errors"].worse.above == 1 and found["tpot"].worse.trials == 0
    found = trials(counts(done=3), counts(done=9, failed=1))
    assert found["errors"].worse.below == 1
    found = trials(counts(done=9, failed=1), counts(done=3))
    assert found["errors"].worse.trials == 0  # the new version was likelier to have the failure


def test_a_block_counts_once_and_the_speed_is_cautious() -> None:
    known, arms = begun(("tpot",)), (Arm((COMBO,)), Arm((COMBO,)))
    blocks = [
        VersionBlock((at + 1) * 10_000, {"new": counts(times=0.75 + 0.01 * at), "old": counts()})
        for at in range(5)
    ]
    for block in (*blocks, *blocks):
        known = with_blocks(known, (block,), "new", "old", arms)
    assert known.total.new.completed == 5 * 40
    assert 1.0 < known.speed < 1.33


def test_all_tests_of_a_comparison_keep_one_level_together() -> None:
    every = begun(COMPARED)
    assert len(every.metrics) > 1
    assert every.level == pytest.approx(LEVEL / len(every.metrics))
    assert begun(()).level == LEVEL
