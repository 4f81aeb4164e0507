"""An engine's event stream, watched while it passes: ends, errors, counts, the usage chunk.

Owns one stream's reading. It looks for a few byte patterns per block and parses only the rare
blocks that hold usage, because most of a gateway's work is passing tokens through.
"""

from __future__ import annotations

from executors.gateway.openai import usage_of

_EVENT = b"data: "
_END = b"\n\n"
_MAX_PART = 1 << 20  # an event longer than this is no event


class BrokenStream(ValueError):
    """The engine sent something that is no event stream."""


class EventStream:
    """Blocks of bytes in, whole events out.

    events: data events passed so far, [DONE] and usage chunks not counted. usage: (prompt,
    completion) tokens once stated. done: [DONE] was seen. failed: an error or an
    abort was seen.
    """

    __slots__ = ("_part", "_strip", "done", "events", "failed", "usage")

    def __init__(self, strip_usage: bool) -> None:
        self._part = b""
        self._strip = strip_usage
        self.events = 0
        self.usage: tuple[int, int] | None = None
        self.done = False
        self.failed = False

    def feed(self, block: bytes) -> bytes:
        """What the client gets of `block` (events that are whole); BrokenStream if endless."""
        if self._part:
            block, self._part = self._part + block, b""
        if not block.endswith(_END):
            cut = block.rfind(_END) + 2
            if cut < 2:
                cut = 0
            self._part = block[cut:]
            if len(self._part) > _MAX_PART:
                raise BrokenStream("an event of more than 1 MiB")
            block = block[:cut]
        # Blank lines stand between events only (inside JSON a line's end is escaped), so a text
        # that holds "data: [DONE]" ends nothing and counts as nothing.
        self.events += block.count(_END + _EVENT) + block.startswith(_EVENT)
        if _begins(block, b"data: [DONE]"):
            self.done = True
            self.events -= 1
        # vLLM that is stopped ends what runs with the finish reason "abort": half an answer.
        if _begins(block, b'data: {"error"') or b'"finish_reason":"abort"' in block:
            self.failed = True
        # Inside a token's text the quotes are escaped, so this is a key and not generated text.
        if b'"usage":{' in block or b'"usage": {' in block:
            block = self._read_usage(block)
        return block

    def _read_usage(self, block: bytes) -> bytes:
        kept = []
        for event in block.split(_END):
            if event.startswith(_EVENT) and b'"usage":' in event:
                self.usage = usage_of(event[len(_EVENT) :]) or self.usage
                if b'"choices":[]' in event or b'"choices": []' in event:
                    self.events -= 1
                    if self._strip:
                        continue
            kept.append(event)
        return _END.join(kept)


def _begins(block: bytes, start: bytes) -> bool:
    """Whether an event in `block` (whole events) begins with `start`."""
    return block.startswith(start) or _END + start in block
