"""Server-sent events for many viewers: numbered, resumable, and bounded for each viewer.

An event is serialised once for all viewers. The hub keeps the last events, so a viewer that
reconnects continues after its last id. A viewer that reads too slowly is disconnected and
reconnects. If the hub is full, a new viewer replaces the oldest one of the client that has the most
viewers, because a viewer that does not read cannot be told from one whose fleet is quiet. Source of
the stream format: HTML standard, section 9.2.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator

MOST_VIEWERS = 50
_KEPT_BYTES = 8 << 20
_KEPT_EVENTS = 300
_QUEUE = 30


class EventHub:
    """Events of one process. An id is "stream:number".

    stream: identity of the process; ids of other processes are unknown here.
    """

    def __init__(self, stream: str, queue: int = _QUEUE, kept_bytes: int = _KEPT_BYTES) -> None:
        self._stream = stream
        self._queue = queue
        self._kept_bytes = kept_bytes
        self._kept: deque[tuple[int, bytes]] = deque()
        self._bytes = 0
        self._viewers: dict[asyncio.Queue[bytes | None], str] = {}  # client by queue, oldest first
        self.number = 0
        self.dropped = 0

    @property
    def viewers(self) -> int:
        """Number of connected viewers."""
        return len(self._viewers)

    def publish(self, kind: str, data: bytes) -> None:
        """Send one event to every viewer. data: JSON without line breaks."""
        self.number += 1
        event = b"id: %s:%d\nevent: %s\ndata: %s\n\n" % (
            self._stream.encode(), self.number, kind.encode(), data,
        )  # fmt: skip
        self._kept.append((self.number, event))
        self._bytes += len(event)
        while self._kept and (len(self._kept) > _KEPT_EVENTS or self._bytes > self._kept_bytes):
            self._bytes -= len(self._kept.popleft()[1])
        self._send(event)

    def beat(self) -> None:
        """Send a comment to every viewer, so that both ends notice a broken connection."""
        self._send(b": beat\n\n")

    async def follow(self, last_id: str, client: str = "") -> AsyncGenerator[bytes]:
        """Events after `last_id`, until this viewer is too slow or replaced. client: name or
        address of the viewer.

        If these events are no longer kept, the first event is "reset", and the viewer must read the
        whole state again.
        """
        if len(self._viewers) >= MOST_VIEWERS:
            self._replace_one()
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(self._queue)
        missed = self._missed(last_id)
        self._viewers[queue] = client
        try:
            yield b"retry: 2000\n\n"
            if missed is None:
                yield b"event: reset\ndata: {}\n\n"
            for event in missed or ():
                yield event
            while (now := await queue.get()) is not None:
                yield now
        finally:
            self._viewers.pop(queue, None)

    def close(self) -> None:
        """End the streams of all viewers."""
        for queue in self._viewers:
            _end(queue)
        self._viewers.clear()

    def _replace_one(self) -> None:
        """End the oldest viewer of the client with the most viewers."""
        counts = Counter(self._viewers.values())
        most = max(counts.values())
        oldest = next(one for one, client in self._viewers.items() if counts[client] == most)
        del self._viewers[oldest]
        self.dropped += 1
        _end(oldest)

    def _missed(self, last_id: str) -> list[bytes] | None:
        stream, _, text = last_id.rpartition(":")
        if stream != self._stream or not (text.isascii() and text.isdigit()):
            return None
        number = int(text)
        oldest = self._kept[0][0] if self._kept else self.number + 1
        if number > self.number or number < oldest - 1:
            return None
        return [event for n, event in self._kept if n > number]

    def _send(self, event: bytes) -> None:
        for queue in [*self._viewers]:
            try:
                queue.put_nowait(event)
            except asyncio.QueueFull:
                self.dropped += 1
                self._viewers.pop(queue, None)
                _end(queue)


def _end(queue: asyncio.Queue[bytes | None]) -> None:
    """End a viewer after its queued events. If its queue is full, they are dropped."""
    if queue.full():
        queue.get_nowait()
    queue.put_nowait(None)
