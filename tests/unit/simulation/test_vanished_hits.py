"""Hits of prefix caches that a plan counts, and that end within a minute."""

from __future__ import annotations

from loadtests.vanished_hits import scenario, simulate

_ENDS_S, _FADE_S = 120.0, 60.0


def test_all_missing_capacity_is_ordered_within_half_a_minute_of_the_end_of_sharing() -> None:
    run = simulate(scenario(1, _ENDS_S, 240.0), True, _ENDS_S)
    before = [count for at_s, count in run.ordered if at_s <= 0.0]
    later = [(at_s, count) for at_s, count in run.ordered if at_s > 0.0]
    assert len(before) == 1  # nothing else changed the fleet
    assert later[-1][1] >= 2 * before[0]
    assert later[-1][0] <= _FADE_S + 30.0
