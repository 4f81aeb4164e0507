"""The memory of a gateway for the prompts that it sent, and its bound."""

from __future__ import annotations

from autoscaler.serving.prefix_index import PrefixIndex
from topics.records import Endpoint

A, B = Endpoint("a", "h:1"), Endpoint("b", "h:2")


def idle(_: Endpoint) -> float:
    return 0.0


def test_the_index_forgets_the_end_of_the_oldest_prompt_first() -> None:
    index = PrefixIndex(most_blocks=4)
    index.note_sent((1, 2, 3), A)
    index.note_sent((11, 12), B)
    assert [*index._holders] == [2, 1, 12, 11]
    assert index.choose((1, 2, 3), (A, B), idle) == A
    index.note_sent((1, 2), A)
    index.note_sent((21, 22), B)
    assert [*index._holders] == [2, 1, 22, 21]


def test_an_instance_that_left_is_forgotten() -> None:
    index = PrefixIndex()
    index.note_sent((1, 2), A)
    index.note_sent((1, 2), B)
    index.note_sent((3,), A)
    index.keep({B})
    assert dict(index._holders) == {2: [B], 1: [B]}
    index.keep({A, B})
    assert dict(index._holders) == {2: [B], 1: [B]}
