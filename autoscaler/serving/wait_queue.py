"""Requests of one model that wait for an instance with room.

Owns the order, who gets the next slot, and who has waited too long. Knows nothing of HTTP, tasks
or clocks: callers say what the time is (`now_ms`, domain ms) and carry out what comes back.

First come, first served among those that can still meet the TTFT limit of the routes; requests
that have waited too long for it come after them. Without that, a queue left over from a minute of
overload makes every later request miss its SLO as well, long after capacity is there again. Kinds
of requests that go different ways wait in lines of their own: nobody waits behind those for whom
there is no room while there is some for them.

Why wait here and not at the engines: what waits in an engine's own queue stays there. Fifteen
minutes of prompts collected by the first instance are of no use to the ten that start meanwhile.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from autoscaler.serving.routing import Pick, Router
from autoscaler.serving.routing_policies import ANY, Want
from topics.records import Endpoint

LATE = 0.75
"""Share of the TTFT limit after which a waiting request is late: prefill takes the rest."""


class Refusal(StrEnum):
    """Why a request gets no slot."""

    NO_INSTANCE = "no_instance"  # nothing serves the model
    NO_ROOM = "no_room"  # instances serve it, all full for too long
    QUEUE_FULL = "queue_full"  # too many wait already


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """One request that waits. order: of arrival; a request that is tried again keeps its own.

    tried: instances it was sent to already. joined_ms: when it began to wait, this time. want:
    what it asks for.
    """

    order: int
    tried: frozenset[Endpoint]
    joined_ms: int
    want: Want = ANY


_Turn = tuple[int, int, Ticket]


@dataclass(slots=True)
class _Line:
    """Those of one kind, as heaps by order; leavers stay in. late: they come after all others."""

    turns: list[_Turn] = field(default_factory=list)
    late: list[_Turn] = field(default_factory=list)


@dataclass(slots=True)
class WaitQueue:
    """Requests that wait for `router`'s instances. Call `dispatch` after whatever may have made
    room (`Router.done`, `apply`, `readmit`) and after `join`.

    hold_ms: longest wait while nothing serves. queue_ms: longest wait of all.
    """

    router: Router
    hold_ms: float
    queue_ms: float
    _waiting: dict[Ticket, bool] = field(default_factory=dict)  # by time joined: is it late?
    _lines: dict[str, _Line] = field(default_factory=dict)  # by kind
    _on_time: deque[_Turn] = field(default_factory=deque)  # by time joined
    _joined: int = 0
    _closed_ms: int | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def tickets(self) -> tuple[Ticket, ...]:
        """All that wait."""
        return tuple(self._waiting)

    def join(self, order: int, tried: frozenset[Endpoint], now_ms: int, want: Want = ANY) -> Ticket:
        """Begin to wait, behind those of lower `order`."""
        ticket = Ticket(order, tried, now_ms, want)
        self._joined += 1
        self._waiting[ticket] = False
        turn = (order, self._joined, ticket)
        line = self._lines.get(want.kind)
        if line is None:
            line = self._lines[want.kind] = _Line()
        heapq.heappush(line.turns, turn)
        self._on_time.append(turn)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Wait no longer; nothing happens if it does not."""
        self._waiting.pop(ticket, None)
        kept = sum(len(line.turns) + len(line.late) for line in self._lines.values())
        if kept > 2 * len(self._waiting) + 64:
            for line in self._lines.values():
                for turns in (line.turns, line.late):
                    turns[:] = [turn for turn in turns if turn[2] in self._waiting]
                    heapq.heapify(turns)
            self._on_time = deque(turn for turn in self._on_time if turn[2] in self._waiting)

    def dispatch(self, now_ms: int) -> list[tuple[Ticket, Pick]]:
        """Everyone whose turn it is, and where each goes; they wait no longer.

        One that was tried somewhere waits for another instance as long as another one serves;
        meanwhile those behind it may take the room that it does not want.
        """
        self._set_late_aside(now_ms)
        found: list[tuple[Ticket, Pick]] = []
        for late in (False, True):
            passed: list[tuple[list[_Turn], _Turn]] = []
            while (turns := self._next(late)) is not None:
                turn = heapq.heappop(turns)
                ticket = turn[2]
                pick = self.router.pick(ticket.tried, ticket.want)
                if pick is None and not self.router.is_open(ticket.tried, ticket.want.kind):
                    pick = self.router.pick(want=ticket.want)
                if pick is None:
                    passed.append((turns, turn))
                    continue
                del self._waiting[ticket]
                found.append((ticket, pick))
            for turns, turn in passed:
                heapq.heappush(turns, turn)
        return found

    def _next(self, late: bool) -> list[_Turn] | None:
        """The heap whose head is the first of all for whom there may be room; None without one."""
        best: list[_Turn] | None = None
        for kind, line in self._lines.items():
            turns = line.late if late else line.turns
            while turns and self._waiting.get(turns[0][2]) is not late:
                heapq.heappop(turns)  # it left, or waits among the late ones by now
            if turns and (best is None or turns[0] < best[0]) and self.router.has_room(kind):
                best = turns
        return best

    def _set_late_aside(self, now_ms: int) -> None:
        """Move those that can no longer meet the TTFT limit behind all others."""
        limit_ms = self.router.routes.ttft_limit_ms if self.router.routes else 0.0
        while self._on_time:
            turn = self._on_time[0]
            ticket = turn[2]
            if ticket in self._waiting:
                if limit_ms <= 0.0 or now_ms - ticket.joined_ms <= LATE * limit_ms:
                    return  # who joined later has waited less
                self._waiting[ticket] = True
                heapq.heappush(self._lines[ticket.want.kind].late, turn)
            self._on_time.popleft()

    def expired(self, now_ms: int) -> list[tuple[Ticket, Refusal]]:
        """Everyone who has waited too long; they wait no longer. Call periodically."""
        if self.router.is_open():
            self._closed_ms = None
        elif self._closed_ms is None:
            self._closed_ms = now_ms
        found: list[tuple[Ticket, Refusal]] = []
        for ticket in self._waiting:  # who joined later has waited less
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
