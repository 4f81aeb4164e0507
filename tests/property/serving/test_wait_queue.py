"""The wait queue, compared with a simple record of waiting and running requests."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from autoscaler.serving.request_router import Router
from autoscaler.serving.wait_queue import LATE, Refusal, Ticket, WaitQueue
from topics.records import Endpoint, RouteGroup, Routes

HOLD_MS, QUEUE_MS, TTFT_MS = 3_000, 10_000, 2_000
ENDS = [Endpoint(name, f"h:{name}") for name in "abcd"]

# slots by instance; two instances form a group; the groups have weights 1 and 3
fleets = st.dictionaries(st.integers(0, 3), st.integers(0, 4), max_size=4)


class TheLine(RuleBasedStateMachine):
    """A Hypothesis state machine. Each rule is an event at a gateway, with the
    gateway's reaction.
    """

    def __init__(self) -> None:
        super().__init__()
        self.router = Router("m")
        self.line = WaitQueue(self.router, HOLD_MS, QUEUE_MS)
        self.now_ms = self.order = self.generation = 0
        self.slots: dict[Endpoint, int] = {}
        self.out: set[Endpoint] = set()
        self.waiting: dict[Ticket, None] = {}
        self.inside: list[tuple[Ticket, Endpoint]] = []
        self.ended = 0
        self.closed_ms: int | None = None

    def _settle(self) -> None:
        before = Counter(end for _, end in self.inside)
        came = Counter[Endpoint]()
        for ticket, pick in self.line.dispatch(self.now_ms):
            end = pick.endpoint
            assert end in self.slots.keys() - self.out
            came[end] += 1
            del self.waiting[ticket]
            self.inside.append((ticket, end))
            others = self.slots.keys() - self.out - ticket.tried
            assert not (end in ticket.tried and others), "sent back though another one serves"
            late = self._late(ticket)
            ahead = [w for w in self.waiting if (self._late(w), w.order) < (late, ticket.order)]
            assert all(w.tried for w in ahead), "overtook one that would go anywhere"
        for end, count in came.items():
            assert not self.slots[end] or before[end] + count <= self.slots[end]

    def _late(self, ticket: Ticket) -> bool:
        return self.now_ms - ticket.joined_ms > LATE * TTFT_MS

    def _room(self) -> set[Endpoint]:
        load = Counter(end for _, end in self.inside)
        return {
            end for end, slots in self.slots.items()
            if end not in self.out and (not slots or load[end] < slots)
        }  # fmt: skip

    @rule()
    def arrive(self) -> None:
        self.order += 1
        self.waiting[self.line.join(self.order, frozenset(), self.now_ms)] = None
        self._settle()

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        if self.inside:
            _, end = self.inside.pop(data.draw(st.integers(0, len(self.inside) - 1)))
            self.ended += 1
            self.router.release(end)
            self._settle()

    @rule(data=st.data(), gone=st.booleans())
    def fail_and_try_again(self, data: st.DataObject, gone: bool) -> None:
        if self.inside:
            ticket, end = self.inside.pop(data.draw(st.integers(0, len(self.inside) - 1)))
            if gone:
                self._eject(end)
            self.router.release(end)
            again = self.line.join(ticket.order, ticket.tried | {end}, self.now_ms)
            self.waiting[again] = None
            self._settle()

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        if self.waiting:
            ticket = data.draw(st.sampled_from(sorted(self.waiting, key=lambda t: t.order)))
            self.line.leave(ticket)
            del self.waiting[ticket]
            self.ended += 1
            self._settle()

    @rule(fleet=fleets)
    def change_routes(self, fleet: dict[int, int]) -> None:
        groups = []
        for group, (first, last) in enumerate(((0, 1), (2, 3))):
            ends = tuple(
                Endpoint(ENDS[n].instance, ENDS[n].address, fleet[n])
                for n in (first, last)
                if n in fleet
            )
            if ends:
                groups.append(RouteGroup(f"g{group}", 1.0 + 2.0 * group, ends))
        self.generation += 1
        self.router.apply(Routes("m", self.generation, 1, 0, TTFT_MS, 1.0, tuple(groups)))
        self.slots = {ENDS[n]: slots for n, slots in fleet.items()}
        self.out &= self.slots.keys()
        self._settle()

    def _eject(self, end: Endpoint) -> None:
        if end in self.slots:
            self.router.eject(end, self.now_ms)
            self.out.add(end)

    @rule(end=st.sampled_from(ENDS))
    def eject(self, end: Endpoint) -> None:
        self._eject(end)
        # Requests that waited for `end` may return to instances that already failed them.
        self._settle()

    @rule(end=st.sampled_from(ENDS))
    def readmit(self, end: Endpoint) -> None:
        if self.router.readmit(end):
            self.out.discard(end)
            self._settle()

    @rule(ms=st.integers(0, 4_000))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms
        serves = bool(self.slots.keys() - self.out)
        if serves:
            self.closed_ms = None
        elif self.closed_ms is None:
            self.closed_ms = self.now_ms
        turned = dict(self.line.expired(self.now_ms))
        for ticket in list(self.waiting):
            waited = self.now_ms - ticket.joined_ms
            if self.closed_ms is not None and (
                self.now_ms - max(ticket.joined_ms, self.closed_ms) >= HOLD_MS
            ):
                assert turned.pop(ticket) is Refusal.NO_INSTANCE
            elif waited >= QUEUE_MS:
                assert turned.pop(ticket) is Refusal.NO_ROOM
            else:
                continue
            del self.waiting[ticket]
            self.ended += 1
        assert not turned
        self._settle()

    @invariant()
    def nothing_is_lost(self) -> None:
        assert len(self.line) == len(self.waiting)
        assert len(self.waiting) + len(self.inside) + self.ended == self.order
        load = Counter(end for _, end in self.inside)
        assert all(self.router.in_flight(end) == load[end] for end in ENDS)

    @invariant()
    def nobody_waits_while_there_is_room_for_it(self) -> None:
        room = self._room()
        for ticket in self.waiting:
            assert not room - ticket.tried
            assert not room or self.slots.keys() - self.out - ticket.tried

    def teardown(self) -> None:
        """Once requests end and instances serve, every waiting request gets a slot."""
        self.change_routes({0: 1, 3: 2})
        for end in list(self.out):
            self.readmit(end)
        for _ in range(self.order + 1):
            if not self.inside:
                break
            _, end = self.inside.pop(0)
            self.ended += 1
            self.router.release(end)
            self._settle()
        assert not self.waiting and not self.inside


TestTheLine = TheLine.TestCase
TestTheLine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
