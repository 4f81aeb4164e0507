"""The memory of a gateway for the prompts that it sent, and its bound."""

from __future__ import annotations

from autoscaler.serving.prefix_index import PrefixIndex
from topics.records import Endpoint

A, B = Endpoint("a", "h:1"), Endpoint("b", "h:2")


IDLE = (0.0, 0.0)


def test_the_index_forgets_the_end_of_the_oldest_prompt_first() -> None:
    index = PrefixIndex(most_blocks=4)
    index.note_sent((1, 2, 3), A)
    index.note_sent((11, 12), B)
    assert [*index._known] == [2, 1, 12, 11]
    assert index.choose((1, 2, 3), (A, B), IDLE) == 0
    index.note_sent((1, 2), A)
    index.note_sent((21, 22), B)
    assert [*index._known] == [2, 1, 22, 21]


def test_an_instance_that_left_is_forgotten() -> None:
    index = PrefixIndex()
    index.note_sent((1, 2), A)
    index.note_sent((1, 2), B)
    index.note_sent((3,), A)
    index.keep({B})
    assert [*index._known] == [2, 1]
    assert index.choose((1, 2), (A, B), IDLE) == 1
    index.keep({A, B})
    index.note_sent((3, 4), Endpoint("c", "h:3"))  # gets the place of A, but not its blocks
    assert [index.choose((1, 2), (A, B), IDLE) for _ in range(3)] == [1, 1, 1]
    assert [*index._known] == [2, 1, 4, 3]


def test_a_prompt_with_a_known_beginning_of_its_own_is_not_new() -> None:
    """Also if an instance has less than half of it. A beginning that other prompts continue
    differently is common, so the least loaded instance gets the prompt."""
    index = PrefixIndex()
    index.note_sent((1, 2, 10, 11), A)
    index.note_sent((1, 2, 20, 21), A)
    busy = (2.0, 1.0)
    later = (30, 31, 32, 33, 34, 35)
    assert index.choose((1, 2, 10, 11, *later), (A, B), busy) == 0
    assert index.choose((1, 2, *later), (A, B), busy) == 1
    assert index.choose((1, 2, 30), (A, B), busy) == 0  # it has more than half


def test_the_home_of_a_prompt_does_not_depend_on_what_a_gateway_knows_of_it() -> None:
    ends = tuple(Endpoint(f"e{number}", f"h:{number}") for number in range(8))
    homes = []
    for turns in (0, 1, 2):
        index = PrefixIndex()
        for chat in (10, 20):
            index.note_sent((1, 2, chat), ends[0])
        prompt = (1, 2, *range(30, 60))
        if turns:  # all instances, so that none has more than the others
            for end in ends:
                index.note_sent(prompt[: 2 + 2 * turns], end)
        homes.append(index.choose(prompt, ends, [0.0] * 8, agree=True))
    assert homes[0] == homes[1] == homes[2]
