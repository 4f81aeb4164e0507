"""Report of a replay: outcomes of requests by model, and whether requests were sent in time.

Latencies are in ms of real time, from the due time of a request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from streams.tools.replay.replay_report import Limits, Record, quantile
from streams.tools.replay.request_schedule import Job

Outcome = tuple[str, str, float, float, int, int]
"""(model, reason of failure or "", first ms, last ms, input tokens, output tokens)"""

Late = tuple[float, float]
"""(recorded time, delay in ms with which the request was sent)"""

LATE_MS = 100.0
"""Largest valid p99 of the sending delay. Above it the generator was too slow
for valid latencies.
"""

_SHORT = 0.01


class Totals:
    """Totals of one run, over all workers."""

    def __init__(self) -> None:
        self.started = False
        self.workers = 1
        self._record = Record({})
        self._jobs: Sequence[Job] = ()
        self._speed = 1.0
        self._late: list[Late] = []

    def begin(self, jobs: Sequence[Job], limits: Mapping[str, Limits | None], speed: float) -> None:
        """Start a run of these jobs."""
        self.started = True
        self._record, self._jobs, self._speed = Record(limits), jobs, speed
        self._late = []

    def add(self, outcomes: Iterable[Outcome], late: Iterable[Late]) -> None:
        """Add one worker's outcomes since its last report."""
        for model, reason, first_ms, last_ms, read, written in outcomes:
            if reason:
                self._record.fail(model, reason)
            else:
                self._record.models[model].serve(first_ms, last_ms, read, written)
            self._record.models[model].sent += 1
        self._late += [(at, ms) for at, ms in late]

    def asked_req_per_s(self) -> float:
        """Request rate of the trace at the requested speed."""
        return _rate([job.at_ms / self._speed for job in self._jobs])

    def sent_req_per_s(self) -> float:
        """Rate at which requests were sent."""
        return _rate(sorted(at / self._speed + ms for at, ms in self._late))

    def late_ms(self) -> float:
        """p99 of the delay with which requests were sent, in ms."""
        return quantile([ms for _, ms in self._late], 0.99) or 0.0

    def exit_code(self) -> int:
        """0, or 3 if the sent load differs from the requested load."""
        asked, sent = self.asked_req_per_s(), self.sent_req_per_s()
        short = len(self._late) < len(self._jobs) or sent < asked * (1.0 - _SHORT)
        return 3 if short or self.late_ms() > LATE_MS else 0

    def text(self) -> str:
        """Format a table of models, failures, and the rate."""
        lines = [
            "",
            f"{'model':16} {'sent':>7} {'served':>7} {'SLO met':>8} "
            f"{'TTFT p50/p95/p99 ms':>24} {'TPOT p50/p95/p99 ms':>24}",
        ]
        for name, model in self._record.models.items():
            met = f"{model.attained / model.sent:.1%}" if model.sent else "-"
            ttft, tpot = (_quantiles(values) for values in (model.ttft_ms, model.tpot_ms))
            lines.append(
                f"{name:16} {model.sent:7d} {model.served:7d} {met:>8} {ttft:>24} {tpot:>24}"
            )
        for reason, count in self._record.reasons.most_common(10):
            lines.append(f"{count} failed: {reason}")
        asked, sent, late = self.asked_req_per_s(), self.sent_req_per_s(), self.late_ms()
        lines.append(
            f"asked for {asked:.2f} req/s, sent {sent:.2f} ({len(self._late)} of "
            f"{len(self._jobs)} requests), late by {late:.0f} ms (p99)"
        )
        if self.exit_code():
            lines.append(
                "the load was not what was asked for: use more workers (--processes), or less speed"
            )
        return "\n".join(lines)


def _rate(times_ms: Sequence[float]) -> float:
    if len(times_ms) < 2 or times_ms[-1] <= times_ms[0]:
        return 0.0
    return 1000.0 * (len(times_ms) - 1) / (times_ms[-1] - times_ms[0])


def _quantiles(values: Sequence[float]) -> str:
    found = [quantile(values, q) for q in (0.5, 0.95, 0.99)]
    return "/".join("-" if value is None else f"{value:.0f}" for value in found)
