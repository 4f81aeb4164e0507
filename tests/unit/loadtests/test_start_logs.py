"""The memory model against public start-ups of vLLM."""

from __future__ import annotations

from loadtests.start_logs import NEAR, start_ups


def test_the_cache_is_near_the_logs() -> None:
    """Five of six start-ups within 10%."""
    ran = [one for one in start_ups() if one.measured and not one.refused]
    near = [one for one in ran if abs(one.ratio - 1.0) <= NEAR]
    assert len(ran) >= 25
    assert len(near) >= 5 / 6 * len(ran)


def test_no_refused_start_up_is_predicted_to_start() -> None:
    refused = [one for one in start_ups() if one.refused]
    assert len(refused) >= 9
    assert not [one.name for one in refused if one.starts]
