"""Logs of control-plane processes: to stderr, warnings and worse, and no message in a flood.

Owns the set-up. Clients of a broker that is away say so ten times a second; a person needs it once
in a while.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable

AGAIN_S = 30.0
_MOST_KNOWN = 500


class Sparing(logging.Filter):
    """Lets a message (by logger and its text before arguments) pass once in `again_s` seconds."""

    def __init__(
        self, again_s: float = AGAIN_S, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._again_s = again_s
        self._monotonic_s = monotonic_s
        self._last_s: dict[tuple[str, object], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether `record` is news."""
        key, now_s = (record.name, record.msg), self._monotonic_s()
        last_s = self._last_s.get(key)
        if last_s is not None and now_s - last_s < self._again_s:
            return False
        if len(self._last_s) >= _MOST_KNOWN:
            self._last_s.clear()
        self._last_s[key] = now_s
        return True


def log_to_stderr(level: int = logging.WARNING) -> None:
    """Set up the root logger of this process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    handler.addFilter(Sparing())
    logging.basicConfig(level=level, handlers=[handler])
