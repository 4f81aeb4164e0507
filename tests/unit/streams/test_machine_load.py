"""Time limits of starts are longer on a loaded machine."""

from __future__ import annotations

from streams.machine_load import IdleTime, slowdown


def test_a_second_at_a_third_of_the_speed_counts_as_a_third_of_a_second() -> None:
    now_s, slowed = 100.0, 1.0
    idle = IdleTime(lambda: now_s, lambda: slowed)
    now_s += 10.0
    assert idle.passed_s() == 10.0
    slowed = 3.0
    now_s += 30.0
    assert idle.passed_s() == 20.0
    assert slowdown() >= 1.0
