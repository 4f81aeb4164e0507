"""Results are cached by the identity of the arguments."""

from __future__ import annotations

from autoscaler.estimate.memoize import memoize


def test_an_object_is_asked_about_once_and_an_equal_one_gets_an_answer_of_its_own() -> None:
    """The key is the identity of the object; equal objects are not compared."""
    asked: list[list[int]] = []

    @memoize(8)
    def total(numbers: list[int]) -> int:
        asked.append(numbers)
        return sum(numbers)

    one, other = [1, 2, 3], [1, 2, 3]
    assert [total(one), total(one), total(other), total(one)] == [6, 6, 6, 6]
    assert len(asked) == 2 and asked[0] is one and asked[1] is other


def test_what_is_remembered_is_bounded_and_never_taken_for_another_object() -> None:
    """A thousand objects are created and dropped, so addresses repeat; none gets the result of
    another."""

    @memoize(4)
    def first(numbers: list[int]) -> int:
        return numbers[0]

    assert all(first([number]) == number for number in range(1000))


def test_equal_numbers_beside_an_object_are_the_same_question() -> None:
    """Numbers in the key are compared by value, because equal ints may be different objects."""
    asked: list[int] = []

    @memoize(8)
    def above(numbers: list[int], least: int) -> int:
        asked.append(least)
        return sum(number >= least for number in numbers)

    some = [300, 3000]
    assert [above(some, int(text)) for text in ("1000", "1000", "100", "1000")] == [1, 1, 2, 1]
    assert asked == [1000, 100]
    assert above(some, id(some)) == 0
