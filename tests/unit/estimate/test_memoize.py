"""Results are cached by the identity of their arguments."""

from __future__ import annotations

from autoscaler.estimate.memoize import memoize


def test_the_cache_key_is_the_identity_of_the_object() -> None:
    """Equal objects are not compared, so each gets its own result."""
    asked: list[list[int]] = []

    @memoize(8)
    def total(numbers: list[int]) -> int:
        asked.append(numbers)
        return sum(numbers)

    one, other = [1, 2, 3], [1, 2, 3]
    assert [total(one), total(one), total(other), total(one)] == [6, 6, 6, 6]
    assert len(asked) == 2 and asked[0] is one and asked[1] is other


def test_the_cache_is_bounded_and_a_reused_address_gets_no_old_result() -> None:
    """A thousand objects are created and dropped, so their addresses repeat."""

    @memoize(4)
    def first(numbers: list[int]) -> int:
        return numbers[0]

    assert all(first([number]) == number for number in range(1000))


def test_numbers_in_the_key_are_compared_by_value() -> None:
    """Equal ints may be different objects."""
    asked: list[int] = []

    @memoize(8)
    def above(numbers: list[int], least: int) -> int:
        asked.append(least)
        return sum(number >= least for number in numbers)

    some = [300, 3000]
    assert [above(some, int(text)) for text in ("1000", "1000", "100", "1000")] == [1, 1, 2, 1]
    assert asked == [1000, 100]
    assert above(some, id(some)) == 0


def test_results_in_use_are_kept_and_others_are_dropped() -> None:
    """One value is used between a thousand others, and is computed once. The first of the others is
    computed again, because it was dropped."""
    computed: list[tuple[int, ...]] = []

    @memoize(100)
    def total(values: tuple[int, ...]) -> int:
        computed.append(values)
        return sum(values)

    lasting, others = (1, 2), [(k, k) for k in range(1000)]
    for other in others:
        assert (total(lasting), total(other)) == (3, 2 * other[0])
    assert computed.count(lasting) == 1
    assert total(others[0]) == 0
    assert computed.count((0, 0)) == 2
