"""Reversals between scale-out and scale-in are counted. They limit only scale-in."""

from __future__ import annotations

import pytest

from autoscaler.sizing.scale_in.reversals import after_move, scale_in_within_limit
from autoscaler.state.model_state import Reversals


def test_a_repeated_direction_is_no_reversal() -> None:
    """The moves out, out, in, in, out have two reversals."""
    turns = Reversals()
    for k, move in enumerate(("out", "out", "in", "in", "out")):
        turns = after_move(turns, move, k * 1000)
    assert turns == Reversals("out", (2000, 4000))


@pytest.mark.parametrize("most", [1, 2, 5])
def test_a_scale_in_needs_room_for_two_reversals(most: int) -> None:
    """A scale-in and the scale-out after it are two reversals. `most` reversals are allowed per
    hour, counted over two hours. Older ones do not count.
    """
    assert scale_in_within_limit(Reversals("out", (1,) * (2 * most - 2)), 1000, most)
    assert not scale_in_within_limit(Reversals("out", (1,) * (2 * most - 1)), 1000, most)
    assert scale_in_within_limit(Reversals("out", (1,) * 9), 7_200_001, most)
    assert scale_in_within_limit(
        Reversals("in", (1,) * 2 * most), 1000, most
    )  # a second scale-in is no reversal
