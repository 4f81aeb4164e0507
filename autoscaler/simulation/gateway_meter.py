"""Counts of one model at a simulated gateway since its last report."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

from autoscaler.simulation.simulated_request import Call, Ending
from topics.telemetry import COUNTS, SKETCHES
from topics.telemetry_columns import SentByKind, pack_cells, requests_by_kind
from topics.telemetry_span import Span

_counts_of = attrgetter(*COUNTS)
_sketches_of = attrgetter(*SKETCHES)


@dataclass(slots=True)
class GatewayMeter(Span):
    """Counts of one model at one gateway."""

    def count_ended(
        self, call: Call, too_long: bool, ttft_limit_ms: float, tpot_limit_ms: float
    ) -> None:
        """Count the end of a request. too_long: whether no engine would have accepted the
        request."""
        self.in_flight -= 1
        if call.ending is Ending.REFUSED:
            self.refused += 1
        elif too_long:
            self.withdrawn += 1
        elif call.ending is not Ending.SERVED or call.first_ms is None or call.end_ms is None:
            self.failures += 1
        else:
            if call.blocks:
                self.count_cached(call.input_tokens, call.cached_tokens)
            self.count_answer(
                call.first_ms - call.arrival_ms,
                call.end_ms - call.arrival_ms,
                call.input_tokens,
                call.output_tokens,
                ttft_limit_ms,
                tpot_limit_ms,
            )

    def take_report(
        self, sequence: int, span_ms: int, route_generation: int
    ) -> tuple[list[int], bytes, SentByKind]:
        """End the span. Returns a row of `TelemetryBatch.numbers` (including zeros), its cells and
        kinds.

        For speed, windows read this form instead of records.
        """
        row = [*_counts_of(self), sequence, span_ms, 0, self.in_flight, route_generation, 0]
        found = row, pack_cells(_sketches_of(self)), requests_by_kind(self.sent_to)
        self.reset()
        return found
