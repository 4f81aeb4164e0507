"""The performance model against public benchmarks of B200, B300, H100, H200, MI300X and MI355X."""

from __future__ import annotations

from collections import defaultdict

import pytest

from loadtests.public_points import PublicPoint, errors, inside, predicted

ENOUGH = 5


def by_format(held_out: bool | None = None) -> dict[tuple[str, str], list[PublicPoint]]:
    """Points by chip and weight format; only those of one set, if `held_out` is given."""
    found: dict[tuple[str, str], list[PublicPoint]] = defaultdict(list)
    for one in predicted():
        if held_out in (None, one.held_out):
            found[one.group[:2]].append(one)
    return {key: own for key, own in found.items() if len(own) >= ENOUGH}


def test_the_time_per_token_of_a_held_out_model_is_near_on_every_chip() -> None:
    judged = by_format(held_out=True)
    assert {"B200-SXM", "H200-SXM", "MI300X", "MI355X"} <= {gpu for gpu, _ in judged}
    for key, own in judged.items():
        assert errors(own)[0] <= 0.25, key


def test_b200_is_near_in_every_format() -> None:
    own = {key: errors(points)[0] for key, points in by_format().items() if key[0] == "B200-SXM"}
    assert set(own) == {("B200-SXM", dtype) for dtype in ("fp4", "fp8", "mxfp4")}
    assert max(own.values()) <= 0.25


@pytest.mark.parametrize("held_out", [None, True])
def test_intervals_hold_the_points_of_each_chip_and_format(held_out: bool | None) -> None:
    """Of all points, and of those of models that chose no factor."""
    for key, own in by_format(held_out).items():
        for figure in ("TPOT", "TTFT"):
            share = inside(own, figure)
            assert share is None or share >= 0.85, (key, figure)
