"""What leaves for executors and gateways is dated and signed here, at the last moment.

Holds how long a record may be acted upon. It is longer than any pause of a healthy controller, who
says everything again each third of that time; past it an executor starts nothing new.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from streams.clock import Clock
from streams.files.user_errors import UserError
from topics.checks import InvalidRecord
from topics.signing import CLUSTER_KEY, Keys, Signed, keys_from, signed

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
        return signed(record, self.keys, self.clock.now_ms(), self.valid_ms)

    @property
    def valid_ms(self) -> int:
        """How long a record may be acted upon, in domain ms."""
        return max(_VALID_MS, int(_VALID_REAL_S * 1000 * self.clock.time_base.speed))


def read_keys() -> Keys:
    """The cluster's key, from the environment or the file it names. UserError: it is unusable."""
    try:
        return keys_from(os.environ, lambda path: Path(path).read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{CLUSTER_KEY}_FILE: {error}") from None
    except InvalidRecord as error:
        raise UserError(str(error)) from None
