"""Dead letters: one record for each invalid record that the controller reads."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from streams.controller.control_state import ControlState
from streams.invalid_records import Poison
from streams.ports.actuator import Publisher

log = logging.getLogger(__name__)

_MOST_POISON = 1000


class DeadLetters:
    """Writes one dead letter for each invalid record. A standby keeps its
    letters until it leads.
    """

    def __init__(
        self, outbox: Publisher, latest: ControlState, reader: str, leads: Callable[[], bool]
    ) -> None:
        self._outbox = outbox
        self._latest = latest
        self._reader = reader
        self._leads = leads
        self._waiting: deque[Poison] = deque(maxlen=_MOST_POISON)

    def __call__(self, poison: Poison) -> None:
        log.warning("%s at %d: %s", poison.topic, poison.offset, poison.why)
        self._waiting.append(poison)
        if self._leads():
            self.flush()

    def flush(self) -> None:
        """Write the pending dead letters that no other controller has written."""
        while self._waiting:
            poison = self._waiting.popleft()
            if poison.place not in self._latest.dropped.dead:
                self._latest.dropped.bury(poison.place)
                self._outbox.put(poison.letter(self._reader))
