"""What a gateway counts of one model's flow between two reports, as windows take it.

The counts are columns and cells (`topics.telemetry_columns`), never records or text. Routes and
time are unknown here.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from autoscaler.performance.numba_decorators import compiled
from autoscaler.simulation.arrival_flow import Batch, Ints
from autoscaler.simulation.rate_flow import Cohort, scaled
from topics.sketch import MOST_IN_CELL, WIDTH
from topics.telemetry import COUNTS, SKETCHES

_TTFT, _TPOT, _INPUTS, _OUTPUTS, _SHAPES = range(5)


class FlowMeter:
    """Counts since the last report; meanings as in `Telemetry`. in_flight is of now."""

    def __init__(self) -> None:
        self.in_flight = 0
        self._counts = dict.fromkeys(COUNTS, 0)
        self._cells = np.zeros((len(SKETCHES), WIDTH), np.int64)
        self._attained = 0.0  # less the whole ones that were counted
        self._seen = False  # anything since the last report

    def came(self, batch: Batch) -> None:
        """These requests came in."""
        self._seen = True
        counts = self._counts
        counts["arrivals"] += batch.requests
        counts["input_tokens_arrived"] += batch.input_tokens
        self._cells[_INPUTS] += batch.inputs
        self._cells[_SHAPES] += batch.shapes

    def ended(self, cohort: Cohort) -> None:
        """These requests were answered or refused."""
        batch, share = cohort.batch, cohort.served / max(1, cohort.batch.taken)
        self._seen = True
        counts = self._counts
        counts["completions"] += cohort.served
        counts["refused"] += cohort.refused
        # Of what is left of one the next has its part, or few at a time would always be rounded so.
        self._attained += cohort.attained
        whole = min(cohort.served, math.floor(self._attained + 0.5))
        self._attained -= whole
        counts["attained"] += whole
        counts["input_tokens"] += round(share * batch.input_tokens)
        counts["output_tokens"] += round(share * batch.output_tokens)
        self._cells[_OUTPUTS] += scaled(batch.outputs, share)
        self._cells[_TTFT] += cohort.ttft
        self._cells[_TPOT] += cohort.tpot

    def report(self, sequence: int, span_ms: int, route_generation: int) -> tuple[list[int], bytes]:
        """The span that ends now, zeros included, as a row of `Reported.numbers` and cells; the
        next one begins."""
        row = [*self._counts.values(), sequence, span_ms, 0, self.in_flight, route_generation, 0]
        if not self._seen:
            return row, b""
        self._counts = dict.fromkeys(COUNTS, 0)
        self._seen = False
        return row, _told(self._cells.ravel()).tobytes()


@compiled
def _told(counts: Ints) -> npt.NDArray[np.int16]:
    """`topics.telemetry_columns.pairs_of` of the places of `counts`, which become 0."""
    cells = 0
    for count in counts:
        cells += count // MOST_IN_CELL + 1 if count else 0
    pairs = np.empty((cells, 2), np.int16)
    at = 0
    for place in range(len(counts)):
        left = counts[place]
        counts[place] = 0
        while left > 0:
            pairs[at, 0], pairs[at, 1] = place, min(left, MOST_IN_CELL)
            left -= MOST_IN_CELL
            at += 1
            if left == 0:  # a full cell is never the last
                pairs[at, 0], pairs[at, 1] = place, 0
                at += 1
    return pairs
