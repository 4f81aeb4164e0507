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
_MOST_UNDER_WAY = 1.5


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
        return self._failures() or self._ramp() or self._load()

    def load(self) -> float:
        """Mean concurrent requests of a steady run.

        A run that does not reach its rate, but has a concurrency limit, is bound by the limit.
        """
        if self.bound and not (self.asked_req_per_s and not self._rate()):
            return min(self.bound, self.completed) if self.completed else self.bound
        return min(self.under_way, self.bound) if self.bound else self.under_way

    def _load(self) -> str:
        if self.bound:
            return self._concurrency() if not self.asked_req_per_s or self._rate() else ""
        return self._rate() if self.asked_req_per_s else self._rounds()

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
        if got < least * self.asked_req_per_s:
            return (
                f"asked for {self.asked_req_per_s:.3g} req/s and got {got:.3g}: requests queued "
                "up, no steady load"
            )
        if sent < _ROUNDS * self.asked_req_per_s * self.took_s:
            return (
                f"sent {sent:.0f} requests in {sent / self.asked_req_per_s:.3g} s, and a request "
                f"took {self.took_s:.3g} s: fewer than {_ROUNDS} rounds are not a steady load"
            )
        return ""

    def _rounds(self) -> str:
        """Reason if the run was too short, for a run whose rate and limit are not stated.

        If all requests come at once, the mean request takes about half of the run.
        """
        if not self.duration_s or self.duration_s >= (_ROUNDS + 1) * self.took_s:
            return ""
        return (
            f"lasted {self.duration_s:.3g} s, and a request took {self.took_s:.3g} s: fewer than "
            f"{_ROUNDS + 1} rounds are not a steady load"
        )

    def _concurrency(self) -> str:
        if self.bound > 1.0 and 0.0 < self.completed + self.failed < _ROUNDS * self.bound:
            return (
                f"{self.completed + self.failed:.0f} requests for {self.bound:.0f} at once: fewer "
                f"than {_ROUNDS} rounds are not a steady load"
            )
        if self.under_way > _MOST_UNDER_WAY * self.bound:
            return (
                f"its rate and times mean {self.under_way:.1f} requests under way, but at most "
                f"{self.bound:.0f} were allowed: the figures contradict each other"
            )
        if self.under_way and self.under_way < _LEAST_UNDER_WAY * self.bound:
            return (
                f"asked for {self.bound:.0f} requests at once and had {self.under_way:.1f} under "
                "way: the benchmark did not reach its load"
            )
        return ""
