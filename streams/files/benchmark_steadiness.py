"""Check whether a benchmark run had a steady load; only such a run gives a measured point.

Each check returns the reason to skip the run, or "".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_MOST_FAILED = 0.05
_LEAST_RATE, _SIGMAS = 0.9, 2.0
_LEAST_UNDER_WAY = 0.3
_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Steadiness:
    """Figures that a benchmark tool reports for a run; 0 or "" if missing.

    completed, failed: requests. asked_req_per_s: requested rate. duration_s: from the first request
    to the last answer. took_s: mean duration of a request. bound: concurrency limit. under_way:
    mean concurrent requests. ramp: how the load rose during the run.
    """

    completed: float
    failed: float = 0.0
    asked_req_per_s: float = 0.0
    duration_s: float = 0.0
    took_s: float = 0.0
    bound: float = 0.0
    under_way: float = 0.0
    ramp: str = ""

    def doubt(self) -> str:
        """Reason why the run is not a steady load of successful requests; "" if it is."""
        return self._failures() or self._ramp() or self._rate() or self._concurrency()

    def _failures(self) -> str:
        sent = self.completed + self.failed
        if self.failed <= _MOST_FAILED * sent:
            return ""
        return (
            f"{self.failed:.0f} of {sent:.0f} requests failed: the others had the engine for "
            f"themselves (allowed: {_MOST_FAILED:.0%})"
        )

    def _ramp(self) -> str:
        return f"the load rose during the run ({self.ramp}): no steady load" if self.ramp else ""

    def _rate(self) -> str:
        """Reason if the served rate was below the requested one; "" if not.

        The time in which the last answers arrive is left out, because no requests are sent then.
        """
        sending_s = self.duration_s - self.took_s
        if not self.asked_req_per_s or sending_s <= 0.0:
            return ""
        sent = self.completed + self.failed
        least = min(_LEAST_RATE, 1.0 - _SIGMAS / math.sqrt(max(1.0, sent)))
        got = sent / sending_s
        if got >= least * self.asked_req_per_s:
            return ""
        return (
            f"asked for {self.asked_req_per_s:.3g} req/s and got {got:.3g}: requests queued up, "
            "no steady load"
        )

    def _concurrency(self) -> str:
        if self.bound > 1.0 and 0.0 < self.completed + self.failed < _ROUNDS * self.bound:
            return (
                f"{self.completed + self.failed:.0f} requests for {self.bound:.0f} at once: fewer "
                f"than {_ROUNDS} rounds are not a steady load"
            )
        if self.under_way and self.under_way < _LEAST_UNDER_WAY * self.bound:
            return (
                f"asked for {self.bound:.0f} requests at once and had {self.under_way:.1f} under "
                "way: the benchmark did not reach its load"
            )
        return ""
