"""Order of the turns of each session: which arrival waits for which."""

from __future__ import annotations

from collections.abc import Sequence

from autoscaler.simulation.arrivals import Arrival


class SessionOrder:
    """arrivals: by rising time; the arrivals of one session wait for each other in this order."""

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
        """Number of the arrival that waits for number `index`; None if none does."""
        return self._next.get(index)

    def turns_left(self, index: int) -> int:
        """Number of turns of the session from number `index` on."""
        count = 1
        while (index := self._next.get(index, -1)) >= 0:
            count += 1
        return count
