"""Adapters: their checks, vLLM's arguments for them, and their counts in telemetry."""

from __future__ import annotations

import pytest

from topics.checks import InvalidValue
from topics.lora_adapters import (
    MOST_ADAPTERS,
    Adapter,
    check_adapters,
    in_batch,
    kind_of_adapter,
    rank_limit,
    requests_by_adapter,
)
from topics.telemetry import check_sent


@pytest.mark.parametrize(
    ("name", "weights", "rank"),
    [("", "a/b", 8), ("a b", "a/b", 8), ("a", "", 8), ("a", "--x", 8), ("a", "a/b", 0),
     ("a", "a/b", 513), ("a" * 200, "a/b", 8)],
)  # fmt: skip
def test_an_invalid_adapter_is_refused(name: str, weights: str, rank: int) -> None:
    with pytest.raises(InvalidValue):
        Adapter(name, weights, rank)


def test_adapters_are_bounded_and_have_names_of_their_own() -> None:
    check_adapters([Adapter(f"a{n}", "o/a") for n in range(MOST_ADAPTERS)])
    with pytest.raises(InvalidValue, match="at most"):
        check_adapters([Adapter(f"a{n}", "o/a") for n in range(MOST_ADAPTERS + 1)])
    with pytest.raises(InvalidValue, match="each name once"):
        check_adapters([Adapter("a", "o/a"), Adapter("a", "o/b")])


@pytest.mark.parametrize(("rank", "limit"), [(1, 1), (2, 8), (16, 16), (17, 32), (300, 320)])
def test_the_rank_limit_is_one_that_vllm_accepts(rank: int, limit: int) -> None:
    assert rank_limit([Adapter("a", "o/a", 1), Adapter("b", "o/b", rank)]) == limit


def test_the_operator_decides_how_many_are_in_a_batch() -> None:
    assert [in_batch((), count) for count in (1, 8, 30)] == [1, 8, 8]
    assert in_batch(("--max-loras=3",), 30) == 3
    assert in_batch(("--dtype=half", "--max_loras", "20"), 2) == 20
    for wrong in ("0", "x", "-1", "", "513"):
        with pytest.raises(InvalidValue, match="max-loras"):
            in_batch(("--max-loras", wrong), 2)


def test_telemetry_counts_requests_by_adapter() -> None:
    """A record with such counts is valid for readers that do not know adapters."""
    check_sent({kind_of_adapter("legal"): {"chat": 3}})
    assert requests_by_adapter({kind_of_adapter("legal"): 3, "long": 4}) == {"legal": 3}
