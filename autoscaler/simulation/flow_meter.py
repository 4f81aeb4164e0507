"""Counts the flow of one model at a gateway between two reports, in the form that windows read.

For speed, the counts are columns and cells (`topics.telemetry_columns`) instead of records.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from autoscaler.performance.numba_decorators import compiled
from autoscaler.simulation.arrival_flow import Batch, Ints
from autoscaler.simulation.rate_flow import Cohort, scale_counts
from topics.sketch import MOST_IN_CELL, WIDTH
from topics.telemetry import COUNTS, SKETCHES

_TTFT, _TPOT, _INPUTS, _OUTPUTS, _SHAPES = range(5)


class FlowMeter:
    """Counts since the last report, as in `Telemetry`. in_flight: current number of requests."""

    def __init__(self) -> None:
        self.in_flight = 0
        self._counts = dict.fromkeys(COUNTS, 0)
        self._cells = np.zeros((len(SKETCHES), WIDTH), np.int64)
        self._attained = 0.0  # fraction of a request not yet counted
        self._any = False  # whether anything was counted since the last report

    def count_arrivals(self, batch: Batch) -> None:
        """Count requests that arrived."""
        self._any = True
        counts = self._counts
        counts["arrivals"] += batch.requests
        counts["input_tokens_arrived"] += batch.input_tokens
        self._cells[_INPUTS] += batch.inputs
        self._cells[_SHAPES] += batch.shapes

    def count_ended(self, cohort: Cohort) -> None:
        """Count requests that were answered or refused."""
        batch, share = cohort.batch, cohort.served / max(1, cohort.batch.servable)
        self._any = True
        counts = self._counts
        counts["completions"] += cohort.served
        counts["refused"] += cohort.refused
        # Carry the fraction over to the next cohort, because rounding each cohort would be biased.
        self._attained += cohort.attained
        whole = min(cohort.served, math.floor(self._attained + 0.5))
        self._attained -= whole
        counts["attained"] += whole
        counts["input_tokens"] += round(share * batch.input_tokens)
        counts["output_tokens"] += round(share * batch.output_tokens)
        self._cells[_OUTPUTS] += scale_counts(batch.outputs, share)
        self._cells[_TTFT] += cohort.ttft
        self._cells[_TPOT] += cohort.tpot

    def report(self, sequence: int, span_ms: int, route_generation: int) -> tuple[list[int], bytes]:
        """End the span. Returns its counts, including zeros, as a row of `TelemetryBatch.numbers`,
        and its cells."""
        row = [*self._counts.values(), sequence, span_ms, 0, self.in_flight, route_generation, 0]
        if not self._any:
            return row, b""
        self._counts = dict.fromkeys(COUNTS, 0)
        self._any = False
        return row, _take_cells(self._cells.ravel()).tobytes()


@compiled
def _take_cells(counts: Ints) -> npt.NDArray[np.int16]:
    """The cells of `counts`, as `topics.telemetry_columns.cell_pairs` gives them. Resets `counts`
    to 0."""
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
            if left == 0:  # another cell follows each full cell
                pairs[at, 0], pairs[at, 1] = place, 0
                at += 1
    return pairs
