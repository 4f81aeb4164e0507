"""Text that must fit into one line."""

from __future__ import annotations

import pytest

from streams.plain_text import clipped, several


@pytest.mark.parametrize(
    ("width", "said"),
    [
        (60, "why       14.0 req/s over 12.5 of capacity; 3 nodes hold it"),
        (50, "why       14.0 req/s over 12.5 of capacity..."),
        (40, "why       14.0 req/s over..."),
        (33, "why       14.0 req/s over..."),
        (24, "why       14.0 req/s..."),
        (20, "why..."),
    ],
)
def test_a_line_is_cut_between_words_and_no_figure_loses_its_unit(width: int, said: str) -> None:
    line = "why       14.0 req/s over 12.5 of capacity; 3 nodes hold it"
    assert clipped(line, width) == said
    assert len(said) <= width


def test_a_word_that_is_too_long_is_cut_anyway() -> None:
    assert clipped("a" * 30, 10) == "aaaaaaa..."


def test_a_count_of_one_has_the_singular() -> None:
    assert [several(1, "pool"), several(2, "pool")] == ["1 pool", "2 pools"]
