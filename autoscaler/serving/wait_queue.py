"""Requests of one model that wait for an instance with room.

Callers pass the time (`now_ms`, domain ms) and act on the results. Requests that can still meet the
TTFT limit are served first come, first served; late requests come after them. Otherwise one minute
of overload would make all later requests miss their SLO. Each request class has a queue of its own,
so that a class without room does not block the others.

Requests wait in the gateway, because a request in an engine's queue could not move to an instance
that becomes available later.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from autoscaler.serving.request_router import Pick, Router
from autoscaler.serving.routing_policies import ANY, RequestTraits
from topics.records import Endpoint

LATE = 0.75
"""A waiting request is late after this share of the TTFT limit; the rest is needed for prefill."""


def wait_limits_ms(hold_ms: float, queue_ms: float, start_s: float) -> tuple[float, float]:
    """The longest wait while no instance serves, and the longest wait in any case, in ms.

    start_s: start time of an instance. A request may wait for twice this time, so that it survives
    a cold start.
    """
    hold_ms = max(hold_ms, 2000.0 * start_s)
    return hold_ms, max(queue_ms, hold_ms)


class Refusal(StrEnum):
    """The reason why a waiting request is refused."""

    NO_INSTANCE = "no_instance"  # no instance serves the model
    NO_ROOM = "no_room"  # all instances were full for too long
    QUEUE_FULL = "queue_full"  # too many requests wait already
    WITHDRAWN = "withdrawn"  # the model is no longer declared


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """One waiting request. order: serial number by arrival, which a retry keeps. tried: instances
    to which the request was sent before. joined_ms: begin of this wait. want: traits of the
    request.
    """

    order: int
    tried: frozenset[Endpoint]
    joined_ms: int
    want: RequestTraits = ANY


_Entry = tuple[int, int, Ticket]


@dataclass(slots=True)
class _ClassQueue:
    """The queue of one class: two heaps by order, of which `late` comes last. Entries of requests
    that are no longer waiting may remain for a while.
    """

    entries: list[_Entry] = field(default_factory=list)
    late: list[_Entry] = field(default_factory=list)


@dataclass(slots=True)
class WaitQueue:
    """Requests that wait for `router`'s instances. Call `dispatch` after `join` and after each
    event that may free room (`Router.release`, `apply`, `readmit`).

    hold_ms: longest wait while no instance serves. queue_ms: longest wait in any case.
    """

    router: Router
    hold_ms: float
    queue_ms: float
    _waiting: dict[Ticket, bool] = field(
        default_factory=dict
    )  # whether each is late, in order of joining
    _lines: dict[str, _ClassQueue] = field(default_factory=dict)  # by kind
    _on_time: deque[_Entry] = field(default_factory=deque)  # by time joined
    _joined: int = 0
    _closed_ms: int | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def tickets(self) -> tuple[Ticket, ...]:
        """All waiting requests."""
        return tuple(self._waiting)

    def join(
        self, order: int, tried: frozenset[Endpoint], now_ms: int, want: RequestTraits = ANY
    ) -> Ticket:
        """Add a waiting request; requests with a lower `order` are served before it."""
        ticket = Ticket(order, tried, now_ms, want)
        self._joined += 1
        self._waiting[ticket] = False
        entry = (order, self._joined, ticket)
        line = self._lines.get(want.kind)
        if line is None:
            line = self._lines[want.kind] = _ClassQueue()
        heapq.heappush(line.entries, entry)
        self._on_time.append(entry)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Cancel the wait. Does nothing if the request is not waiting."""
        self._waiting.pop(ticket, None)
        kept = sum(len(line.entries) + len(line.late) for line in self._lines.values())
        if kept > 2 * len(self._waiting) + 64:
            for line in self._lines.values():
                for entries in (line.entries, line.late):
                    entries[:] = [entry for entry in entries if entry[2] in self._waiting]
                    heapq.heapify(entries)
            self._on_time = deque(entry for entry in self._on_time if entry[2] in self._waiting)

    def dispatch(self, now_ms: int) -> list[tuple[Ticket, Pick]]:
        """Remove every request for which an instance has a free slot now, and return it with its
        destination. A retry waits for an instance that it has not tried, as long as one serves.
        Requests behind the retry may take the slots that it does not use.
        """
        self._move_late_back(now_ms)
        found: list[tuple[Ticket, Pick]] = []
        for late in (False, True):
            passed: list[tuple[list[_Entry], _Entry]] = []
            while (entries := self._next(late)) is not None:
                entry = heapq.heappop(entries)
                ticket = entry[2]
                pick = self.router.pick(ticket.tried, ticket.want)
                want = ticket.want
                if pick is None and not self.router.is_open(ticket.tried, want.kind, want.adapter):
                    pick = self.router.pick(want=want)
                if pick is None:
                    passed.append((entries, entry))
                    continue
                del self._waiting[ticket]
                found.append((ticket, pick))
            for entries, entry in passed:
                heapq.heappush(entries, entry)
        return found

    def _next(self, late: bool) -> list[_Entry] | None:
        """The heap whose first request comes next among classes that may have a free slot; None if
        there is none."""
        best: list[_Entry] | None = None
        for kind, line in self._lines.items():
            entries = line.late if late else line.entries
            while entries and self._waiting.get(entries[0][2]) is not late:
                # drop the entry: its request no longer waits, or is in the other heap
                heapq.heappop(entries)
            if entries and (best is None or entries[0] < best[0]) and self.router.has_room(kind):
                best = entries
        return best

    def _move_late_back(self, now_ms: int) -> None:
        """Move requests that can no longer meet the TTFT limit to the heap `late`."""
        limit_ms = self.router.routes.ttft_limit_ms if self.router.routes else 0.0
        while self._on_time:
            entry = self._on_time[0]
            ticket = entry[2]
            if ticket in self._waiting:
                if limit_ms <= 0.0 or now_ms - ticket.joined_ms <= LATE * limit_ms:
                    return  # requests that joined later have waited less
                self._waiting[ticket] = True
                heapq.heappush(self._lines[ticket.want.kind].late, entry)
            self._on_time.popleft()

    def expired(self, now_ms: int) -> list[tuple[Ticket, Refusal]]:
        """Remove and return every request that has waited too long. Call this method
        periodically."""
        if self.router.is_open():
            self._closed_ms = None
        elif self._closed_ms is None:
            self._closed_ms = now_ms
        found: list[tuple[Ticket, Refusal]] = []
        for ticket in self._waiting:  # requests that joined later have waited less
            closed_ms = self._closed_ms
            if closed_ms is not None and now_ms - max(ticket.joined_ms, closed_ms) >= self.hold_ms:
                found.append((ticket, Refusal.NO_INSTANCE))
            elif now_ms - ticket.joined_ms >= self.queue_ms:
                found.append((ticket, Refusal.NO_ROOM))
            else:
                break
        for ticket, _ in found:
            self.leave(ticket)
        return found
