"""Invalid records and their dead letters.

A record causes one dead letter, however often it is read, while `ControlState.dead` contains its
position. The number of dead letters for records without a valid signature is limited. So an
unauthenticated writer cannot fill `dead-letters`.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from dataclasses import dataclass

from topics.records import DeadLetter

_MOST_BYTES = 64 * 1024
_MOST_FORGERIES, _FORGERIES_S = 20, 60.0


@dataclass(frozen=True, slots=True)
class Poison:
    """An invalid record at (topic, partition, offset). topic: the short name. why: the reason."""

    topic: str
    partition: int
    offset: int
    value: bytes
    why: str

    @property
    def place(self) -> tuple[str, int, int]:
        """The position (topic, partition, offset), which identifies the record permanently."""
        return self.topic, self.partition, self.offset

    def letter(self, reader: str) -> DeadLetter:
        """The dead letter of this record, with the payload cut at 64 KiB. reader: the process that
        refused it.
        """
        payload = base64.b64encode(self.value[:_MOST_BYTES]).decode()
        return DeadLetter(self.topic, self.partition, self.offset, self.why[:2000], payload, reader)


class Forgeries:
    """Reports records without a valid signature to `on_poison`, at most 20 per minute."""

    def __init__(
        self,
        on_poison: Callable[[Poison], None],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_poison = on_poison
        self._monotonic_s = monotonic_s
        self._since_s = float("-inf")
        self._told = 0

    def tell(self, poison: Poison) -> None:
        """Report `poison` unless the limit per minute is reached."""
        now_s = self._monotonic_s()
        if now_s - self._since_s >= _FORGERIES_S:
            self._since_s, self._told = now_s, 0
        self._told += 1
        if self._told <= _MOST_FORGERIES:
            self._on_poison(poison)
