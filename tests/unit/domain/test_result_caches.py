"""Cached results last while they are asked for."""

from __future__ import annotations

from autoscaler.domain.result_caches import ResultCaches


def test_identity_decides_not_equality() -> None:
    """Equal objects are not compared, so each gets its own result."""
    asked: list[list[int]] = []

    @ResultCaches().by_identity
    def total(numbers: list[int]) -> int:
        asked.append(numbers)
        return sum(numbers)

    one, other = [1, 2, 3], [1, 2, 3]
    assert [total(one), total(one), total(other), total(one)] == [6, 6, 6, 6]
    assert len(asked) == 2 and asked[0] is one and asked[1] is other


def test_a_reused_address_gets_no_old_result() -> None:
    """A thousand objects are created and dropped, so their addresses repeat."""
    caches = ResultCaches()

    @caches.by_identity
    def first(numbers: list[int]) -> int:
        return numbers[0]

    for number in range(1000):
        assert first([number]) == number
        caches.next_period()


def test_numbers_in_an_identity_key_are_compared_by_value() -> None:
    """Equal ints may be different objects."""
    asked: list[int] = []

    @ResultCaches().by_identity
    def above(numbers: list[int], least: int) -> int:
        asked.append(least)
        return sum(number >= least for number in numbers)

    some = [300, 3000]
    assert [above(some, int(text)) for text in ("1000", "1000", "100", "1000")] == [1, 1, 2, 1]
    assert asked == [1000, 100]
    assert above(some, id(some)) == 0


def test_a_result_is_kept_for_a_period_after_it_was_last_asked_for() -> None:
    """A result that each period uses is computed once. The other ones are dropped, and computed
    again."""
    caches = ResultCaches()
    computed: list[tuple[int, int]] = []

    @caches.by_value(100)
    def total(values: tuple[int, int], more: int = 0) -> int:
        computed.append(values)
        return sum(values) + more

    assert (total((1, 1)), total((2, 2)), total((2, 2), more=1)) == (2, 4, 5)
    for _ in range(3):
        caches.next_period()
        assert total((1, 1)) == 2
    assert computed.count((1, 1)) == 1
    assert (total((2, 2)), total((2, 2), more=1)) == (4, 5)
    assert computed.count((2, 2)) == 4


def test_without_periods_a_cache_keeps_at_most_twice_its_limit() -> None:
    """The last 10 of 1,000 results are kept; the first is not."""
    computed: list[int] = []

    @ResultCaches().by_value(10)
    def double(number: int) -> int:
        computed.append(number)
        return 2 * number

    for number in range(1000):
        double(number)
    for number in (*range(990, 1000), *range(980)):
        double(number)
    assert len(computed) == 1980
