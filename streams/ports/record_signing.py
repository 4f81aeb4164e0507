"""Date and sign records for executors and gateways immediately before they are sent.

A healthy controller publishes every record again after a third of the validity period. So the
validity of a healthy controller's records never ends. An executor whose assignment is no longer
valid starts no new instance.
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
    """Signs with `keys`; without keys, records are only dated."""

    keys: Keys
    clock: Clock

    def __call__(self, record: Signed) -> Signed:
        """`record` dated and signed, valid for 15 domain minutes (at least one real minute)."""
        return sign_record(record, self.keys, self.clock.now_ms(), self.valid_ms)

    @property
    def valid_ms(self) -> int:
        """Validity period of a record in domain ms."""
        return max(_VALID_MS, int(_VALID_REAL_S * 1000 * self.clock.time_base.speed))
