"""Waves, length and cost of a rollout before it begins."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.domain.rollout_policy import CanaryPolicy, RolloutPolicy
from autoscaler.rollout.wave_preview import preview_waves
from tests.unit.decide.decide_catalogue import pool, simple

(COMBO,) = simple("chat", pool(per_node=1, usd=2.0), start_s=90.0)


@pytest.mark.parametrize(
    ("old", "total", "step", "waves"),
    [(1, 1, 0.25, 1), (3, 3, 0.25, 3), (8, 8, 0.25, 5), (9, 9, 1.0, 2), (2, 20, 0.1, 2)],
)
def test_the_first_wave_has_one_combo_and_the_others_the_declared_step(
    old: int, total: int, step: float, waves: int
) -> None:
    made = preview_waves([COMBO] * old, total, RolloutPolicy(step=step, watch_s=60.0), 30.0)
    assert (made.combos, made.total, made.waves) == (old, total, waves)
    assert made.seconds == waves * 120.0 + (waves - 1) * 60.0


def test_only_rented_replacements_cost_while_both_versions_run() -> None:
    rents, none = (
        preview_waves([COMBO] * 3, 3, RolloutPolicy(spare=spare), 30.0)
        for spare in ("rent", "none")
    )
    assert rents.usd == pytest.approx(3 * 2.0 * 120.0 / 3600.0) and none.usd == 0.0


def test_a_canary_comes_first_and_its_comparison_counts() -> None:
    without = RolloutPolicy()
    with_one = replace(without, canary=CanaryPolicy(within_s=600.0))
    for total in (1, 3):
        plain, made = (preview_waves([COMBO] * total, total, p, 30.0) for p in (without, with_one))
        assert made.canary_s == 600.0 and made.seconds == plain.seconds + 600.0
        kept_usd = 2.0 * 600.0 / 3600.0 if total == 1 else 0.0
        assert made.usd == pytest.approx(plain.usd + kept_usd)
