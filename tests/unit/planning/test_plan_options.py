"""Time limits of a plan, on a clock that the caller supplies."""

from __future__ import annotations

from autoscaler.planning.planning_problem import PlanOptions


def test_a_search_gets_its_share_of_the_remaining_time() -> None:
    options = PlanOptions(time_limit_s=7.0, elapsed_s=lambda: 3.0)
    assert options.within(0.5).time_limit_s == 5.0
    assert options.within(0.5, 3.0).time_limit_s == 6.0
    assert options.within(0.5, 9.0).time_limit_s == 7.0
    assert not options.is_over()


def test_no_time_is_left_once_the_limit_has_passed() -> None:
    options = PlanOptions(time_limit_s=7.0, elapsed_s=lambda: 8.0)
    assert options.is_over()
    assert options.within(0.5).is_over()


def test_a_restarted_search_gets_its_share_of_the_whole_time() -> None:
    options = PlanOptions(time_limit_s=7.0, elapsed_s=lambda: 8.0)
    assert options.anew(0.5).left_s() == 3.5


def test_without_a_clock_only_work_is_limited() -> None:
    options = PlanOptions()
    assert options.within(0.5) is options
    assert options.anew(0.5) is options
    assert not options.is_over()
