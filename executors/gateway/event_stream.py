"""An engine's event stream, watched while it passes: ends, errors, counts, the usage chunk.

Owns one stream's reading. It looks for a few byte patterns per block and parses only the rare
events that hold usage or an error, because most of a gateway's work is passing tokens through.
Lines may end in LF or CRLF and `data:` may stand without a space; clients always get LF.
"""

from __future__ import annotations

from typing import Any

import orjson

from executors.gateway.openai_format import DONE, usage_of

_END = b"\n\n"
_MAX_PART = 1 << 20  # an event longer than this is no event


class BrokenStream(ValueError):
    """The engine sent something that is no event stream."""


class EventStream:
    """Blocks of bytes in, whole events out.

    events: data events passed so far, [DONE] and usage chunks not counted; one may hold several
    tokens, so `usage` is what counts. usage: (prompt, completion) tokens once stated. done: [DONE]
    was seen. failed: an error or an abort was seen. error: the last error that was stated.
    """

    __slots__ = ("_part", "_strip", "done", "error", "events", "failed", "usage")

    def __init__(self, strip_usage: bool) -> None:
        self._part = b""
        self._strip = strip_usage
        self.events = 0
        self.usage: tuple[int, int] | None = None
        self.done = False
        self.failed = False
        self.error: Any = None

    def feed(self, block: bytes) -> bytes:
        """What the client gets of `block` (events that are whole); BrokenStream if endless."""
        if self._part:
            block, self._part = self._part + block, b""
        open_line = b""
        if b"\r" in block:
            if block.endswith(b"\r"):  # its LF may be on the way
                block, open_line = block[:-1], b"\r"
            block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if open_line or not block.endswith(_END):
            cut = block.rfind(_END) + 2
            if cut < 2:
                cut = 0
            self._part = block[cut:] + open_line
            if len(self._part) > _MAX_PART:
                raise BrokenStream("an event of more than 1 MiB")
            block = block[:cut]
        return self._read(block) if block else block

    def finish(self) -> bytes:
        """The stream has ended: an end mark without its blank line counts."""
        rest, self._part = self._part.strip(), b""
        if not self.done and rest in (b"data: [DONE]", b"data:[DONE]"):
            self.done = True
            return DONE
        return b""

    def _read(self, block: bytes) -> bytes:
        # Blank lines stand between events only (inside JSON a line's end is escaped), so a text
        # that holds "data: [DONE]" ends nothing and counts as nothing.
        self.events += block.count(b"\n\ndata:") + block.startswith(b"data:")
        if b"[DONE]" in block and (
            _begins(block, b"data: [DONE]") or _begins(block, b"data:[DONE]")
        ):
            self.done = True
            self.events -= 1
        if b'"abort"' in block and is_aborted(block):
            self.failed = True
        # Inside a token's text the quotes are escaped, so these are keys and not generated text.
        if b'"usage"' in block or b'"error"' in block or b"event:" in block:
            block = self._read_special(block)
        return block

    def _read_special(self, block: bytes) -> bytes:
        kept = []
        for event in block.split(_END):
            if b'"usage"' in event or b'"error"' in event:
                data = _data(event)
                value = _json(data)
                if value.get("error") is not None:
                    self.failed, self.error = True, value["error"]
                if value.get("usage") is not None:
                    self.usage = usage_of(data) or self.usage
                    if value.get("choices") == []:
                        self.events -= 1
                        if self._strip:
                            continue
            if event.startswith((b"event: error", b"event:error")):
                self.failed = True
            kept.append(event)
        return _END.join(kept)


def is_aborted(answer: bytes) -> bool:
    """Whether vLLM was stopped amid this: it ends what runs as if it were complete, with half an
    answer and the finish reason "abort"."""
    return b'"finish_reason":"abort"' in answer or b'"finish_reason": "abort"' in answer


def _data(event: bytes) -> bytes:
    lines = [line[5:] for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines)


def _json(data: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _begins(block: bytes, start: bytes) -> bool:
    """Whether an event in `block` (whole events) begins with `start`."""
    return block.startswith(start) or _END + start in block
