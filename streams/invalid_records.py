"""Invalid records and their dead letters.

A record causes one dead letter, however often it is read, while `ControlState.dead` contains its
position. The number of dead letters for records without a valid signature is limited, and so is the
payload of all dead letters. So an unauthenticated writer cannot fill `dead-letters`.
"""

from __future__ import annotations

import base64
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from topics.records import DeadLetter

_MOST_BYTES = 64 * 1024
_MOST_FORGERIES = 20
MOST_PAYLOAD_BYTES = 4 * 1024 * 1024
"""Maximum payload of the dead letters of one reader in a minute."""
_MINUTE_S = 60.0


class PerMinute:
    """A quota of `most` units in each minute."""

    def __init__(self, most: int, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._monotonic_s = monotonic_s
        self._since_s = float("-inf")
        self._used = 0

    def allows(self, units: int = 1) -> bool:
        """Use `units` of the quota and return True, or use none and return False."""
        now_s = self._monotonic_s()
        if now_s - self._since_s >= _MINUTE_S:
            self._since_s, self._used = now_s, 0
        if self._used + units > self._most:
            return False
        self._used += units
        return True


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
    """Reports records without a valid signature to `on_poison`, at most 20 per minute and topic."""

    def __init__(
        self,
        on_poison: Callable[[Poison], None],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_poison = on_poison
        self._quotas = defaultdict[str, PerMinute](partial(PerMinute, _MOST_FORGERIES, monotonic_s))

    def tell(self, poison: Poison) -> None:
        """Report `poison` unless the limit of its topic is reached."""
        if self._quotas[poison.topic].allows():
            self._on_poison(poison)
