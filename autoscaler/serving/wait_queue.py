"""Requests of one model that wait for an instance with room, first come, first served.

Owns the order, who gets the next place, and who has waited too long. Knows nothing of HTTP, tasks
or clocks: callers say what the time is (`now_ms`, domain ms) and carry out what comes back.

Why wait here and not at the engines: what waits in an engine's own queue stays there. Fifteen
minutes of prompts collected by the first instance are of no use to the ten that start meanwhile.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from enum import StrEnum

from autoscaler.serving.routing import Pick, Router
from topics.records import Endpoint


class Refusal(StrEnum):
    """Why a request gets no place."""

    NO_INSTANCE = "no_instance"  # nothing serves the model
    NO_ROOM = "no_room"  # instances serve it, all full for too long
    QUEUE_FULL = "queue_full"  # too many wait already


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """One request that waits. order: of arrival; a request that is tried again keeps its own.

    tried: instances it was sent to already. joined_ms: when it began to wait, this time.
    """

    order: int
    tried: frozenset[Endpoint]
    joined_ms: int


@dataclass(slots=True)
class WaitQueue:
    """Those who wait for `router`'s instances. After whatever may have made room (`Router.done`,
    `apply`, `readmit`) and after `join`, `dispatch` must be asked.

    hold_ms: longest wait while nothing serves. queue_ms: longest wait of all.
    """

    router: Router
    hold_ms: float
    queue_ms: float
    _waiting: dict[Ticket, None] = field(default_factory=dict)  # by the time they joined
    _turns: list[tuple[int, int, Ticket]] = field(default_factory=list)  # a heap; leavers stay in
    _joined: int = 0
    _closed_ms: int | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def join(self, order: int, tried: frozenset[Endpoint], now_ms: int) -> Ticket:
        """Begin to wait, behind those of lower `order`."""
        ticket = Ticket(order, tried, now_ms)
        self._joined += 1
        self._waiting[ticket] = None
        heapq.heappush(self._turns, (order, self._joined, ticket))
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Wait no longer; nothing happens if it does not."""
        self._waiting.pop(ticket, None)
        if len(self._turns) > 2 * len(self._waiting) + 64:
            self._turns = [turn for turn in self._turns if turn[2] in self._waiting]
            heapq.heapify(self._turns)

    def dispatch(self) -> list[tuple[Ticket, Pick]]:
        """Everyone whose turn it is, and where each goes; they wait no longer.

        One that was tried somewhere waits for another instance as long as another one serves;
        meanwhile those behind it may take the room that it does not want.
        """
        found: list[tuple[Ticket, Pick]] = []
        passed: list[tuple[int, int, Ticket]] = []
        while self._turns and self.router.has_room():
            turn = heapq.heappop(self._turns)
            ticket = turn[2]
            if ticket not in self._waiting:
                continue
            pick = self.router.pick(ticket.tried)
            if pick is None and not self.router.is_open(ticket.tried):
                pick = self.router.pick()
            if pick is None:
                passed.append(turn)
                continue
            del self._waiting[ticket]
            found.append((ticket, pick))
        for turn in passed:
            heapq.heappush(self._turns, turn)
        return found

    def expired(self, now_ms: int) -> list[tuple[Ticket, Refusal]]:
        """Everyone who has waited too long; they wait no longer. To be asked now and then."""
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
