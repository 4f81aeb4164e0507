"""Read an engine's event stream while it is copied: its end, errors, event count and usage.

Copying is most of a gateway's work, so each block is only searched for a few byte patterns, and
only the rare events with usage or an error are parsed. Engines may send LF or CRLF and `data:`
without a space; clients always get LF.
"""

from __future__ import annotations

from typing import Any

import orjson

from executors.gateway.openai_format import DONE, Usage, usage_of

_EVENT_END = b"\n\n"
_MAX_EVENT_BYTES = 1 << 20


class InvalidEventStream(ValueError):
    """The engine's response is not an event stream."""


class EventStream:
    """Turns blocks of bytes into whole events.

    events: number of data events so far, without [DONE] and usage chunks; an event may hold several
    tokens, so token counts come from `usage`. usage: the tokens once an event states
    them. done: whether [DONE] has arrived. failed: whether an error or an abort has arrived.
    error: the last error object.
    """

    __slots__ = ("_partial", "_strip_usage", "done", "error", "events", "failed", "usage")

    def __init__(self, strip_usage: bool) -> None:
        self._partial = b""
        self._strip_usage = strip_usage
        self.events = 0
        self.usage: Usage | None = None
        self.done = False
        self.failed = False
        self.error: Any = None

    def feed(self, block: bytes) -> bytes:
        """The whole events that `block` completes, as bytes for the client. Raises
        InvalidEventStream if an event is too long."""
        if self._partial:
            block, self._partial = self._partial + block, b""
        open_line = b""
        if b"\r" in block:
            if block.endswith(b"\r"):  # the LF after this CR may be in the next block
                block, open_line = block[:-1], b"\r"
            block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if open_line or not block.endswith(_EVENT_END):
            cut = block.rfind(_EVENT_END) + 2
            if cut < 2:
                cut = 0
            self._partial = block[cut:] + open_line
            if len(self._partial) > _MAX_EVENT_BYTES:
                raise InvalidEventStream("an event exceeds 1 MiB")
            block = block[:cut]
        return self._read(block) if block else block

    def finish(self) -> bytes:
        """The last bytes for the client at the end of the stream. A [DONE] without its blank line
        is accepted."""
        rest, self._partial = self._partial.strip(), b""
        if not self.done and rest in (b"data: [DONE]", b"data:[DONE]"):
            self.done = True
            return DONE
        return b""

    def _read(self, block: bytes) -> bytes:
        # JSON escapes line ends, so a blank line always separates events. Generated text that
        # contains "data: [DONE]" is therefore not mistaken for the end.
        self.events += block.count(b"\n\ndata:") + block.startswith(b"data:")
        if b"[DONE]" in block and (
            _has_event_starting(block, b"data: [DONE]")
            or _has_event_starting(block, b"data:[DONE]")
        ):
            self.done = True
            self.events -= 1
        if b'"abort"' in block and is_aborted(block):
            self.failed = True
        # JSON escapes quotes in generated text, so these patterns can only be keys.
        if b'"usage"' in block or b'"error"' in block or b"event:" in block:
            block = self._read_special(block)
        return block

    def _read_special(self, block: bytes) -> bytes:
        kept = []
        for event in block.split(_EVENT_END):
            if b'"usage"' in event or b'"error"' in event:
                data = event_data(event)
                value = parse_object(data)
                if value.get("error") is not None:
                    self.failed, self.error = True, value["error"]
                if value.get("usage") is not None:
                    self.usage = usage_of(data) or self.usage
                    if value.get("choices") == []:
                        self.events -= 1
                        if self._strip_usage:
                            continue
            if event.startswith((b"event: error", b"event:error")):
                self.failed = True
            kept.append(event)
        return _EVENT_END.join(kept)


def is_aborted(answer: bytes) -> bool:
    """Whether vLLM aborted the generation: an aborted answer ends as if it were complete, with the
    finish reason "abort"."""
    return b'"finish_reason":"abort"' in answer or b'"finish_reason": "abort"' in answer


def event_data(event: bytes) -> bytes:
    """The data of an event."""
    lines = [line[5:] for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines)


def parse_object(data: bytes) -> dict[str, Any]:
    """The JSON object in `data`; {} if `data` is not a JSON object."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _has_event_starting(block: bytes, start: bytes) -> bool:
    """Whether some event in `block`, which holds whole events, begins with `start`."""
    return block.startswith(start) or _EVENT_END + start in block
