"""The outcomes of the sent requests, and the report on them.

Latencies are in domain ms from the scheduled arrival. Lateness is in real ms. Quantiles are exact,
because every value of a replay is kept.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Limits:
    """A model's SLO in domain ms."""

    ttft_ms: float
    tpot_ms: float


@dataclass(slots=True)
class ModelRecord:
    """Counts and latencies of the requests for one model.

    sent = served + failed + those in flight or dropped. answered_by: the models that served them;
    several if the name is a service of several models.
    """

    limits: Limits | None
    sent: int = 0
    served: int = 0
    failed: int = 0
    attained: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    answered_by: Counter[str] = field(default_factory=Counter)
    ttft_ms: array[float] = field(default_factory=lambda: array("d"))
    tpot_ms: array[float] = field(default_factory=lambda: array("d"))

    def serve(
        self,
        first_ms: float,
        last_ms: float,
        input_tokens: int,
        output_tokens: int,
        by: str = "",
    ) -> None:
        """Count one complete answer. first_ms, last_ms: its first token and its end, after the
        scheduled arrival.

        by: the model that answered.
        """
        self.served += 1
        if by:
            self.answered_by[by] += 1
        self.input_tokens += input_tokens
        self.output_tokens += output_tokens
        self.ttft_ms.append(first_ms)
        tpot_ms = 0.0
        if output_tokens > 1:
            tpot_ms = (last_ms - first_ms) / (output_tokens - 1)
            self.tpot_ms.append(tpot_ms)
        limits = self.limits
        if limits and first_ms <= limits.ttft_ms and tpot_ms <= limits.tpot_ms:
            self.attained += 1


class Record:
    """The requests of all models. dropped: requests without an answer when the replay ended.

    models: by name, the SLO, or None if requests are only counted.
    """

    def __init__(self, models: Mapping[str, Limits | None]) -> None:
        self.models = {model: ModelRecord(limits) for model, limits in models.items()}
        self.reasons: Counter[str] = Counter()
        self.late_ms = array("d")

    def fail(self, model: str, reason: str) -> None:
        """Count one request that was refused, was interrupted or could not be sent."""
        self.models[model].failed += 1
        self.reasons[reason] += 1

    def requests(self) -> dict[str, int]:
        """Counts, with sent = served + failed + dropped. Before the end, dropped are those in
        flight.
        """
        sent = sum(model.sent for model in self.models.values())
        served = sum(model.served for model in self.models.values())
        failed = sum(model.failed for model in self.models.values())
        return {
            "sent": sent,
            "served": served,
            "failed": failed,
            "dropped": sent - served - failed,
        }

    def progress(self) -> dict[str, float | int | None]:
        """A line for the live view."""
        counts = self.requests()
        counts["in_flight"] = counts.pop("dropped")
        return {**counts, "late_p99_ms": quantile(self.late_ms[-2000:], 0.99)}

    def report(self) -> dict[str, object]:
        """The report. A quantile without values is null. SLO attainment is a share of all sent
        requests."""
        return {
            "requests": self.requests(),
            "models": {name: _model(record) for name, record in self.models.items()},
            "replay_late_ms": _quantiles(self.late_ms, (0.5, 0.99)),
            "failures": dict(self.reasons.most_common(20)),
        }


def _model(record: ModelRecord) -> dict[str, object]:
    judged = record.limits is not None and record.sent > 0
    return {
        "requests": record.sent,
        "served": record.served,
        "failed": record.failed,
        "answered_by": dict(record.answered_by),
        "input_tokens": record.input_tokens,
        "output_tokens": record.output_tokens,
        "ttft_ms": _quantiles(record.ttft_ms, (0.5, 0.95, 0.99)),
        "tpot_ms": _quantiles(record.tpot_ms, (0.5, 0.95, 0.99)),
        "slo_attainment": round(record.attained / record.sent, 6) if judged else None,
    }


def _quantiles(values: Sequence[float], which: Sequence[float]) -> dict[str, float | None]:
    found = {f"p{q * 100:.0f}": quantile(values, q) for q in which}
    return {name: None if value is None else round(value, 3) for name, value in found.items()}


def quantile(values: Sequence[float], q: float) -> float | None:
    """The smallest value that at least a fraction `q` of `values` does not exceed."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)]
