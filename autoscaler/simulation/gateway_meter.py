"""What a simulated gateway saw of one model since it last reported.

Owns which ending of a call counts as what. Knows nothing of routes or engines.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

from autoscaler.simulation.simulated_request import Call, Ending
from topics.telemetry import COUNTS, SKETCHES
from topics.telemetry_columns import Kinds, cells_with, kinds_of
from topics.telemetry_span import Span

_counts_of = attrgetter(*COUNTS)
_sketches_of = attrgetter(*SKETCHES)


@dataclass(slots=True)
class Meter(Span):
    """Counts of one model at one gateway."""

    def ended(self, call: Call, too_long: bool, ttft_limit_ms: float, tpot_limit_ms: float) -> None:
        """A request that arrived has ended. too_long: no engine would have taken it."""
        self.in_flight -= 1
        if call.ending is Ending.REFUSED:
            self.refused += 1
        elif too_long:
            self.withdrawn += 1
        elif call.ending is not Ending.SERVED or call.first_ms is None or call.end_ms is None:
            self.failures += 1
        else:
            self.count_answer(
                call.first_ms - call.arrival_ms,
                call.end_ms - call.arrival_ms,
                call.input_tokens,
                call.output_tokens,
                ttft_limit_ms,
                tpot_limit_ms,
            )

    def told(
        self, sequence: int, span_ms: int, route_generation: int
    ) -> tuple[list[int], bytes, Kinds]:
        """The span that ends now, zeros included, as windows take it: a row of `Reported.numbers`,
        cells and kinds; the next one begins. No record is made of it, nor checked."""
        row = [*_counts_of(self), sequence, span_ms, 0, self.in_flight, route_generation, 0]
        found = row, cells_with(_sketches_of(self)), kinds_of(self.sent_to)
        self.begin()
        return found
