"""Streams of the Responses and Messages APIs."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from executors.gateway.api_paths import CHAT, MESSAGES, RESPONSES
from executors.gateway.named_event_stream import MessagesStream, ResponsesStream, is_aborted_answer


def event(name: str, **data: Any) -> bytes:
    return f"event: {name}\n".encode() + b"data: " + orjson.dumps({"type": name, **data}) + b"\n\n"


def response_end(status: str) -> bytes:
    usage = {"input_tokens": 7, "output_tokens": 3}
    return event("response.completed", response={"status": status, "usage": usage})


def message_end(stop: str | None) -> bytes:
    usage = {"input_tokens": 7, "output_tokens": 3}
    return event("message_delta", delta={"stop_reason": stop}, usage=usage) + event("message_stop")


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_response_counts_deltas_and_takes_the_usage_of_its_end(size: int) -> None:
    """The first events have no output. Blocks may end anywhere."""
    stream = ResponsesStream()
    start = event("response.created", response={}) + event("response.output_item.added")
    text = start + event("response.output_text.delta", delta="a [DONE]") * 2
    text += response_end("completed")
    passed = b"".join(stream.feed(text[at : at + size]) for at in range(0, len(text), size))
    assert passed == text
    assert (stream.events, stream.usage[:2], stream.done, stream.failed) == (2, (7, 3), True, False)


def test_events_before_the_first_delta_are_no_output() -> None:
    stream = ResponsesStream()
    stream.feed(event("response.created", response={}) + event("response.in_progress", response={}))
    assert (stream.events, stream.done) == (0, False)


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_a_response_that_did_not_end_well_failed(status: str) -> None:
    stream = ResponsesStream()
    stream.feed(response_end(status))
    assert (stream.done, stream.failed) == (True, True)


def test_a_message_counts_deltas_and_takes_the_usage_of_its_end() -> None:
    stream = MessagesStream()
    usage = {"input_tokens": 7, "output_tokens": 0}
    stream.feed(event("message_start", message={"stop_reason": None, "usage": usage}))
    stream.feed(event("content_block_delta", delta={"text": "a"}) * 3 + message_end("end_turn"))
    assert (stream.events, stream.usage[:2], stream.done, stream.failed) == (3, (7, 3), True, False)


def test_a_message_without_a_stop_reason_was_aborted() -> None:
    stream = MessagesStream()
    stream.feed(event("content_block_delta", delta={"text": "a"}) + message_end(None))
    assert stream.failed


@pytest.mark.parametrize("stream", [ResponsesStream(), MessagesStream()])
def test_an_error_event_ends_a_stream(stream: ResponsesStream) -> None:
    stream.feed(event("error", error={"message": "no", "code": 400}))
    assert (stream.failed, stream.done, stream.error["code"]) == (True, True, 400)


def test_a_last_event_without_its_blank_line_counts() -> None:
    stream = MessagesStream()
    stream.feed(message_end("end_turn")[:-2])
    assert not stream.done
    assert stream.finish().endswith(b"\n\n")
    assert stream.done


def test_a_stream_that_breaks_off_is_not_done() -> None:
    stream = ResponsesStream()
    stream.feed(event("response.output_text.delta", delta="a"))
    assert (stream.finish(), stream.done) == (b"", False)


def test_aborted_whole_answers_are_found() -> None:
    assert is_aborted_answer(CHAT, b'{"choices":[{"finish_reason":"abort"}]}')
    assert is_aborted_answer(RESPONSES, b'{"status":"cancelled"}')
    assert not is_aborted_answer(RESPONSES, b'{"status":"incomplete"}')
    assert is_aborted_answer(MESSAGES, b'{"content":[],"usage":{}}')
    assert not is_aborted_answer(MESSAGES, b'{"content":[],"stop_reason":"max_tokens"}')
    assert not is_aborted_answer(MESSAGES, b'{"input_tokens":4}')  # of count_tokens
