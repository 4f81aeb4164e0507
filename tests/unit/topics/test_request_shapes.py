"""Request shapes: classes of input and output length that writers and readers share."""

from __future__ import annotations

import pytest

from topics.request_shapes import CLASSES, nearest_kind, shape_lengths, shape_of
from topics.sketch import HIGHEST, LOWEST


@pytest.mark.parametrize("tokens", [4.0, 18.0, 253.0, 510.0, 2455.0, 900_000.0])
@pytest.mark.parametrize("other", [5.0, 80.0, 4096.0])
def test_a_shape_covers_lengths_within_27_percent(tokens: float, other: float) -> None:
    read, written = shape_lengths(shape_of(tokens, other))
    assert 1 / 1.28 <= read / tokens <= 1.28
    assert 1 / 1.28 <= written / other <= 1.28


def test_every_shape_is_a_bucket_of_a_sketch() -> None:
    assert shape_of(0.0, 0.0) == LOWEST
    assert shape_of(1e9, 1e9) == LOWEST + CLASSES * CLASSES - 1 <= HIGHEST


def test_the_nearest_kind_is_chosen_by_ratio() -> None:
    kinds = [(300.0, 250.0), (4000.0, 80.0), (500.0, 900.0)]
    assert [nearest_kind(kinds, *kind) for kind in kinds] == [0, 1, 2]
    assert nearest_kind(kinds, 1200.0, 90.0) == 1  # a factor of 3.3 from one kind, 4 from the other
    assert nearest_kind(kinds, 0.0, 0.0) == 0
