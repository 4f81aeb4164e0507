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
    """Shoal would start none of these engines with the arguments that vLLM refused."""
    refused = [one for one in start_ups() if one.refused]
    assert len(refused) >= 10
    assert [one.name for one in refused if one.starts] == []


def test_most_start_ups_that_were_found_later_are_near() -> None:
    """They never served to choose a factor or to find a cause."""
    later = [one for one in start_ups() if one.group == LATER and one.measured]
    assert len(later) >= 8
    assert sum(abs(one.ratio - 1.0) <= NEAR for one in later) >= 5 / 6 * len(later)
    assert min(one.ratio for one in later) >= 0.8
