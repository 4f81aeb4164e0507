"""The memory model against public start-ups of vLLM."""

from __future__ import annotations

from loadtests.start_logs import LATER, NEAR, start_ups


def test_the_cache_is_near_the_logs() -> None:
    """Five of six start-ups that were known when the factors were chosen are within 10%."""
    found = [one for one in start_ups() if one.group != LATER]
    ran = [one for one in found if one.measured and not one.refused]
    near = [one for one in ran if abs(one.ratio - 1.0) <= NEAR]
    assert len(ran) >= 25
    assert len(near) >= 5 / 6 * len(ran)


def test_no_refused_start_up_is_predicted_to_start() -> None:
    refused = [one for one in start_ups() if one.refused]
    assert len(refused) >= 9
    assert not [one.name for one in refused if one.starts]


def test_a_start_up_that_was_found_later_is_near_and_not_optimistic() -> None:
    later = [one.ratio for one in start_ups() if one.group == LATER]
    assert len(later) >= 4
    assert min(later) >= 0.8
    assert max(later) <= 1.0 + NEAR
