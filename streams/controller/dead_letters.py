"""Dead letters: one record for each invalid record that the controller reads."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from streams.invalid_records import MOST_PAYLOAD_BYTES, PerMinute, Poison
from streams.loop.control_state import ControlState
from streams.ports.actuator import Publisher

log = logging.getLogger(__name__)

_MOST_POISON = 1000
_MOST_LOGGED = 100


class DeadLetters:
    """Writes one dead letter for each invalid record. A standby keeps its letters until it leads.
    Above `MOST_PAYLOAD_BYTES` and 100 log lines in a minute, letters have no payload and no line.
    """

    def __init__(
        self,
        outbox: Publisher,
        latest: ControlState,
        reader: str,
        leads: Callable[[], bool],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._outbox = outbox
        self._latest = latest
        self._reader = reader
        self._leads = leads
        self._waiting: deque[Poison] = deque(maxlen=_MOST_POISON)
        self._payload = PerMinute(MOST_PAYLOAD_BYTES, monotonic_s)
        self._lines = PerMinute(_MOST_LOGGED, monotonic_s)

    def __call__(self, poison: Poison) -> None:
        if self._lines.allows():
            log.warning("%s at %d: %s", poison.topic, poison.offset, poison.why)
        if not self._payload.allows(len(poison.value)):
            poison = replace(poison, value=b"")
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
