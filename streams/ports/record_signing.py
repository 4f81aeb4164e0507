"""What leaves for executors and gateways is dated and signed here, at the last moment.

Holds how long a record may be acted upon. It is longer than any pause of a healthy controller, who
says everything again each third of that time; past it an executor starts nothing new.
"""

from __future__ import annotations

from dataclasses import dataclass

from streams.clock import Clock
from topics.keys import Keys
from topics.signing import Signed, sign_record

_VALID_MS = 900_000
_VALID_REAL_S = 60.0


@dataclass(frozen=True, slots=True)
class Seal:
    """Signs with `keys`; without any, records are only dated."""

    keys: Keys
    clock: Clock

    def __call__(self, record: Signed) -> Signed:
        """`record` as it may be published now, valid for 15 domain minutes (one real minute at
        least)."""
        return sign_record(record, self.keys, self.clock.now_ms(), self.valid_ms)

    @property
    def valid_ms(self) -> int:
        """How long a record may be acted upon, in domain ms."""
        return max(_VALID_MS, int(_VALID_REAL_S * 1000 * self.clock.time_base.speed))
