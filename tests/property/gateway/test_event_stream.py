"""However a stream is divided into blocks, clients get the same bytes and counts agree."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executors.gateway.event_stream import EventStream, InvalidEventStream

texts = st.lists(
    st.one_of(
        st.text(max_size=12),
        st.sampled_from(('"usage":{"prompt_tokens":9}', "[DONE]\n\n", "\n\ndata: [DONE]\n\n")),
    ),
    max_size=12,
)
DONE = b"data: [DONE]\n\n"


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def token(text: str) -> bytes:
    return event({"choices": [{"text": text}], "usage": None})


def cut(data: bytes, places: list[int]) -> list[bytes]:
    marks = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in itertools.pairwise(marks)]


@given(texts, st.integers(0, 10**6), st.lists(st.integers(0, 10**6), max_size=20), st.booleans())
def test_the_division_into_blocks_does_not_matter(
    generated: list[str], count: int, places: list[int], strip: bool
) -> None:
    tokens = b"".join(map(token, generated))
    usage = event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": count}})
    stream = EventStream(strip_usage=strip)
    seen = b"".join(stream.feed(block) for block in cut(tokens + usage + DONE, places))
    assert seen == (tokens + DONE if strip else tokens + usage + DONE)
    assert stream.usage == (3, count, 0)
    assert stream.events == len(generated)
    assert stream.done
    assert not stream.failed


@given(texts, st.lists(st.integers(0, 10**6), max_size=20))
def test_an_error_event_is_detected_and_forwarded(generated: list[str], places: list[int]) -> None:
    data = b"".join(map(token, generated)) + event({"error": {"message": "lost"}}) + DONE
    stream = EventStream(strip_usage=True)
    assert b"".join(stream.feed(block) for block in cut(data, places)) == data
    assert stream.failed
    assert stream.done


@given(texts, st.lists(st.integers(0, 10**6), max_size=20))
def test_half_an_event_is_never_forwarded(generated: list[str], places: list[int]) -> None:
    """If a stream breaks off, the client has only complete events."""
    data = b"".join(map(token, generated)) + token("the last")[:-3]
    stream = EventStream(strip_usage=True)
    seen = b"".join(stream.feed(block) for block in cut(data, places))
    assert seen == b"".join(map(token, generated))
    assert not stream.done


def test_usage_in_every_chunk_stays_and_the_last_counts() -> None:
    chunks = [
        event({"choices": [{"text": "a"}], "usage": {"prompt_tokens": 3, "completion_tokens": n}})
        for n in (1, 2, 3)
    ]
    stream = EventStream(strip_usage=True)
    assert stream.feed(b"".join(chunks)) == b"".join(chunks)
    assert stream.usage == (3, 3, 0)
    assert stream.events == 3


def test_an_endless_line_is_refused() -> None:
    stream = EventStream(strip_usage=True)
    with pytest.raises(InvalidEventStream):
        for _ in range(100):
            stream.feed(b"x" * 20_000)
