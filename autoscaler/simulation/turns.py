"""Sessions in a simulation: which arrival waits for which.

Knows no time: when a turn comes after the turn before has ended is for the world to say.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoscaler.simulation.arrivals import Arrival


class Turns:
    """arrivals: by rising time; those of one session wait for each other in this order."""

    def __init__(self, arrivals: Sequence[Arrival]) -> None:
        self._after: dict[int, int] = {}
        last: dict[int, int] = {}
        for index, arrival in enumerate(arrivals):
            if arrival.session is None:
                continue
            if arrival.session in last:
                self._after[last[arrival.session]] = index
            last[arrival.session] = index
        self._waiting = frozenset(self._after.values())

    def waits(self, index: int) -> bool:
        """Whether arrival number `index` waits for another to end."""
        return index in self._waiting

    def after(self, index: int) -> int | None:
        """The number of the arrival that waits for number `index`."""
        return self._after.get(index)

    def left(self, index: int) -> int:
        """How many turns the session has from number `index` on."""
        count = 1
        while (index := self._after.get(index, -1)) >= 0:
            count += 1
        return count
