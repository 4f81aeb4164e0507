"""Reads event streams with named events, i.e. of the Responses API and the Messages API. Both begin
with events without output, state the usage near the end, and end with a final event instead of
[DONE]. Only these few events are parsed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from executors.gateway.api_paths import Answers, answers_of
from executors.gateway.event_stream import EventStream, event_data, is_aborted, parse_object
from executors.gateway.openai_format import ApiCall, token_counts

_EVENT_END = b"\n\n"
_RESPONSE_ENDS = (b"response.completed", b"response.incomplete", b"response.failed")
_WHOLE = ("completed", "incomplete")


def event_stream_of(call: ApiCall) -> EventStream:
    """The reader for the answer to `call`."""
    answers = answers_of(call.path)
    if answers is Answers.RESPONSES:
        return ResponsesStream()
    if answers is Answers.MESSAGES:
        return MessagesStream()
    return EventStream(strip_usage=not call.usage_requested)


def is_aborted_answer(path: str, raw: bytes) -> bool:
    """Whether vLLM aborted the generation of a whole answer on `path`, which has status 200."""
    answers = answers_of(path)
    if answers is Answers.OPENAI:
        return is_aborted(raw)
    body = parse_object(raw)
    if answers is Answers.RESPONSES:
        return body.get("status") not in _WHOLE
    return "content" in body and body.get("stop_reason") is None


class NamedEventStream(EventStream):
    """The common part of both kinds. events: number of events with output."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(strip_usage=False)

    def finish(self) -> bytes:
        """The last bytes for the client. A final event without its blank line is accepted."""
        rest, self._partial = self._partial.strip(), b""
        return self._read(rest + _EVENT_END) if rest and not self.done else b""

    def _read(self, block: bytes) -> bytes:
        for event in block.split(_EVENT_END):
            name = _name(event)
            if name.endswith(b"delta") and name != b"message_delta":
                self.events += 1
            elif name == b"error":
                self.failed = self.done = True
                body = parse_object(event_data(event))
                self.error = body.get("error") or body
            elif name:
                self._note(name, event)
        return block

    def _note(self, name: bytes, event: bytes) -> None:
        """Handle an event without output."""


class ResponsesStream(NamedEventStream):
    """A stream of `/v1/responses`: the last event has the whole response with its usage."""

    __slots__ = ()

    def _note(self, name: bytes, event: bytes) -> None:
        if name not in _RESPONSE_ENDS:
            return
        self.done = True
        response = parse_object(event_data(event)).get("response")
        body: Mapping[str, Any] = response if isinstance(response, dict) else {}
        self.usage = token_counts(body.get("usage")) or self.usage
        if body.get("status") not in _WHOLE:
            self.failed, self.error = True, body.get("error")


class MessagesStream(NamedEventStream):
    """A stream of `/v1/messages`: its event `message_delta` has the usage and the stop reason,
    which is null if vLLM aborted the generation."""

    __slots__ = ()

    def _note(self, name: bytes, event: bytes) -> None:
        if name == b"message_stop":
            self.done = True
        elif name == b"message_delta":
            body = parse_object(event_data(event))
            self.usage = token_counts(body.get("usage")) or self.usage
            delta = body.get("delta")
            if not isinstance(delta, dict) or delta.get("stop_reason") is None:
                self.failed = True


def _name(event: bytes) -> bytes:
    """The name of an event, from its `event:` line or else from the type in its data."""
    for line in event.split(b"\n"):
        if line.startswith(b"event:"):
            return line[6:].strip()
    kind = parse_object(event_data(event)).get("type") if event else None
    return kind.encode() if isinstance(kind, str) else b""
