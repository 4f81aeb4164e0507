"""The predicted time per output token of a combo, at the planned load and at half of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autoscaler.domain.validation import finite


@dataclass(frozen=True, slots=True)
class TokenTimes:
    """Predicted median time per output token in ms, against the requests that decode at a time.

    batch, tpot_ms: number of decoding requests over all instances of the combo, and the time, at
    the planned load. half_batch, half_tpot_ms: at half of this load. From there on, the time is
    linear in the number of requests. As in telemetry, the number is the rate of tokens times the
    median time per token.
    """

    batch: float
    tpot_ms: float
    half_batch: float
    half_tpot_ms: float

    def __post_init__(self) -> None:
        finite("token times: half_batch", self.half_batch, 0.0, 1e6)
        finite("token times: batch", self.batch, self.half_batch, 1e6)
        finite("token times: half_tpot_ms", self.half_tpot_ms, 0.0, 1e9)
        finite("token times: tpot_ms", self.tpot_ms, self.half_tpot_ms, 1e9)

    def tpot_ms_at(self, batch: float) -> float:
        """The time per token in ms if `batch` requests decode. Below half of the planned load, the
        line is continued, but not below half of its value there."""
        more = (batch - self.half_batch) / max(self.batch - self.half_batch, 1e-9)
        on_line_ms = self.half_tpot_ms + more * (self.tpot_ms - self.half_tpot_ms)
        return max(0.5 * self.half_tpot_ms, on_line_ms)

    def at_load(self, share: float) -> TokenTimes:
        """The token times if the planned load is `share` of the present one, above 0 and at most
        1."""
        per_request = (self.tpot_ms - self.half_tpot_ms) / max(self.batch - self.half_batch, 1e-9)
        alone_ms = self.half_tpot_ms - per_request * self.half_batch
        points = []
        for part in (share, 0.5 * share):
            requests_per_ms = part * self.batch / self.tpot_ms
            on_line_ms = alone_ms / max(1.0 - per_request * requests_per_ms, 1e-9)
            tpot_ms = max(0.5 * self.half_tpot_ms, min(on_line_ms, self.tpot_ms))
            points.append((requests_per_ms * tpot_ms, tpot_ms))
        return TokenTimes(*points[0], *points[1])

    def batch_at(self, tpot_ms: float) -> float:
        """The number of decoding requests at which a token takes `tpot_ms`; 0 if none."""
        per_ms = (self.batch - self.half_batch) / max(self.tpot_ms - self.half_tpot_ms, 1e-9)
        return max(0.0, self.batch - (self.tpot_ms - tpot_ms) * per_ms)


def pooled(parts: Iterable[tuple[float, TokenTimes]]) -> TokenTimes | None:
    """The token times of several combos that share requests in proportion to their capacity.

    parts: (capacity in requests/s, token times) of each. None without parts.
    """
    parts = list(parts)
    total = sum(rate for rate, _ in parts)
    if total <= 0.0:
        return None
    return TokenTimes(
        sum(times.batch for _, times in parts),
        sum(rate * times.tpot_ms for rate, times in parts) / total,
        sum(times.half_batch for _, times in parts),
        sum(rate * times.half_tpot_ms for rate, times in parts) / total,
    )
