"""Order of the turns of each session: for each arrival, the arrival that it waits for."""

from __future__ import annotations

from collections.abc import Sequence

from autoscaler.simulation.arrivals import Arrival


class SessionOrder:
    """The order of turns. arrivals: by rising time; within a session, each arrival waits for the
    previous one."""

    def __init__(self, arrivals: Sequence[Arrival]) -> None:
        self._next: dict[int, int] = {}
        last: dict[int, int] = {}
        for index, arrival in enumerate(arrivals):
            if arrival.session is None:
                continue
            if arrival.session in last:
                self._next[last[arrival.session]] = index
            last[arrival.session] = index
        self._waiting = frozenset(self._next.values())

    def waits(self, index: int) -> bool:
        """Whether arrival number `index` waits for another one to end."""
        return index in self._waiting

    def next_turn(self, index: int) -> int | None:
        """Number of the arrival that waits for arrival number `index`; None if there is none."""
        return self._next.get(index)

    def turns_left(self, index: int) -> int:
        """Number of turns in the session from arrival number `index` on."""
        count = 1
        while (index := self._next.get(index, -1)) >= 0:
            count += 1
        return count
