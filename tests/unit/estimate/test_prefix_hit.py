"""The share of prefix hits to plan with: it rises slowly and falls at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from autoscaler.domain.workload import Lengths, lognormal
from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.estimate.prefix_hit import estimate_prefix_hit, fallen_prefix_hit
from autoscaler.estimate.request_lengths import estimate_lengths
from autoscaler.estimate.window_stats import PrefixHits, WindowLengths, proven_share

STEADY = PrefixHits(
    recent=((30_000, 18_600), (100_000, 62_000)),
    local_queried=1_000_000, local_hit=620_000,
    long_queried=6_000_000, minutes=30, proven_share=0.57,
)  # fmt: skip


def demand(hits: PrefixHits, mean_tokens: float = 1000.0) -> ModelDemand:
    return ModelDemand(prefix_hits=hits, local_lengths=WindowLengths(mean_input_tokens=mean_tokens))


def planned(share: float, cv: float = 0.0) -> Lengths:
    spread = lognormal(1000.0, cv) if cv else ()
    return Lengths(1000.0, 100.0, inputs=spread, prefix_hit=share)


def last(hit: int, queried: int = 100_000) -> PrefixHits:
    """`STEADY`, with `hit` of `queried` tokens in the last half minute."""
    return replace(STEADY, recent=((queried, hit),))


def test_a_measured_share_replaces_the_declared_one() -> None:
    assert estimate_prefix_hit(planned(0.0), demand(STEADY)) == pytest.approx(0.55)
    assert estimate_prefix_hit(planned(0.7), demand(last(70_000))) == 0.55
    # Without a report of cached tokens, the declared share stays.
    assert estimate_prefix_hit(planned(0.7), demand(PrefixHits())) == 0.7


def test_the_share_is_a_part_of_the_planned_lengths() -> None:
    lengths = Lengths(1000.0, 100.0)
    assert estimate_lengths(lengths, lengths, demand(STEADY)) == replace(lengths, prefix_hit=0.55)


def test_a_share_rises_only_after_minutes_and_not_above_the_local_window() -> None:
    early = replace(STEADY, minutes=3)
    assert estimate_prefix_hit(planned(0.0), demand(early)) == 0.0
    assert estimate_prefix_hit(
        planned(0.8), demand(replace(early, recent=((100_000, 90_000),)))
    ) == pytest.approx(0.6)
    assert estimate_prefix_hit(
        planned(0.0), demand(replace(STEADY, local_hit=310_000))
    ) == pytest.approx(0.3)


def test_hits_that_vanish_count_within_the_last_half_minute() -> None:
    assert estimate_prefix_hit(planned(0.55), demand(last(0))) == 0.0
    # Four requests without hits may be chance; so may a small difference.
    assert estimate_prefix_hit(planned(0.55), demand(last(0, 4000))) == 0.55
    assert estimate_prefix_hit(planned(0.55), demand(last(45_000))) == 0.55


def test_the_last_seconds_count_if_they_are_clearly_lower_than_the_half_minute() -> None:
    lower = replace(STEADY, recent=((30_000, 3_000), (100_000, 12_000)))
    assert estimate_prefix_hit(planned(0.55), demand(lower)) == pytest.approx(0.1)
    # Nine requests are too few, and thirty may differ by chance.
    few = replace(STEADY, recent=((9_000, 0), (100_000, 62_000)))
    assert estimate_prefix_hit(planned(0.55), demand(few)) == 0.55
    noisy = replace(STEADY, recent=((30_000, 11_000), (100_000, 62_000)))
    assert estimate_prefix_hit(planned(0.55), demand(noisy)) == 0.55


def test_few_long_prompts_prove_no_fall() -> None:
    """Forty requests without hits, in one case with most of the tokens in five of them."""
    assert fallen_prefix_hit(planned(0.3), demand(last(0, 40_000))) == 0.0
    assert fallen_prefix_hit(planned(0.3, cv=2.0), demand(last(0, 40_000))) == 0.3


def test_a_share_that_sinks_is_planned_as_it_will_be_in_half_a_minute() -> None:
    sinking = replace(STEADY, recent=((90_000, 36_000), (240_000, 132_000)))  # 64%, then 40%
    assert fallen_prefix_hit(planned(0.7), demand(sinking)) == 0.0
    slowly = replace(STEADY, recent=((90_000, 36_000), (240_000, 120_000)))  # 56%, then 40%
    assert fallen_prefix_hit(planned(0.7), demand(slowly)) == pytest.approx(0.05)
    chance = replace(STEADY, recent=((90_000, 36_000), (240_000, 111_000)))  # 50%, then 40%
    assert fallen_prefix_hit(planned(0.7), demand(chance)) == pytest.approx(0.4)
    assert fallen_prefix_hit(planned(0.4), demand(chance)) == 0.4


def test_cold_caches_at_a_start_are_no_fall() -> None:
    cold = replace(last(0), minutes=0)
    assert fallen_prefix_hit(planned(0.55), demand(cold)) == 0.55
    assert fallen_prefix_hit(planned(0.55), demand(replace(cold, minutes=1))) == 0.0
    assert fallen_prefix_hit(planned(0.55), demand(PrefixHits())) == 0.55


def test_a_share_that_fell_does_not_rise_while_the_windows_still_have_old_hits() -> None:
    shares = [0.55]
    for _ in range(4):
        shares.append(estimate_prefix_hit(planned(shares[-1]), demand(last(0))))
    assert shares == [0.55, 0.0, 0.1, 0.1, 0.1]


def test_the_share_keeps_its_step_under_noise() -> None:
    shares = 0.55
    for low in (0.57, 0.56, 0.58, 0.551, 0.599):
        shares = estimate_prefix_hit(planned(shares), demand(replace(STEADY, proven_share=low)))
        assert shares == pytest.approx(0.55)


def minutes(*shares: float, tokens: int = 1000) -> NDArray[np.int64]:
    return np.array([[tokens, round(tokens * share)] for share in shares])


def test_a_steady_share_is_proven_up_to_the_error_of_its_mean() -> None:
    noisy = [0.3 + 0.05 * (-1) ** at for at in range(30)]
    assert proven_share(minutes(*noisy)) == (30_000, 30, pytest.approx(0.3 - 0.0186, abs=0.002))
    # Four minutes prove nothing, and nor do minutes that have no tokens.
    assert proven_share(minutes(*noisy[:4])) == (4000, 4, 0.0)
    idle = np.concatenate([minutes(*noisy[:4]), np.zeros((26, 2), np.int64)])
    assert proven_share(idle) == (4000, 4, 0.0)
    assert proven_share(np.zeros((30, 2), np.int64)) == (0, 0, 0.0)


def test_minutes_before_a_change_do_not_count() -> None:
    assert proven_share(minutes(*[0.1] * 20, *[0.6] * 10))[2] == pytest.approx(0.6)
    rising = proven_share(minutes(*(0.03 * at for at in range(30))))[2]
    assert 0.7 < rising < 0.81  # the mean of the last five minutes


def test_minutes_count_by_their_tokens() -> None:
    found = np.concatenate([minutes(*[0.6] * 9, tokens=1000), minutes(0.0, tokens=10)])
    assert proven_share(found)[2] > 0.58
