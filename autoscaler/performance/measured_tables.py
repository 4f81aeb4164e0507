"""Tables of times that were measured on one model, GPU type and tensor-parallel width.

A `Correction` is the ratio of measured times to the roofline's times. Interpolating the ratio
instead of the time keeps the roofline's shape between measured points. Pure Python.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autoscaler.domain.measurement import Architecture

_NEAREST = 4
# Points whose distance, in doublings, is below this count as the same point.
_SAME_POINT = 1e-3


@dataclass(frozen=True, slots=True)
class MeasuredTable:
    """Measured passes of one model on `tp` GPUs of type `gpu`.

    prefill: (prompt tokens, batch, ms) rows; decode: (mean context, batch, ms) rows.
    """

    architecture: Architecture
    weight_dtype: str
    gpu: str
    tp: int
    prefill: tuple[tuple[float, float, float], ...]
    decode: tuple[tuple[float, float, float], ...]


@dataclass(frozen=True, slots=True)
class Correction:
    """Ratio of measured to estimated time as a function of length and batch; 1 without
    measurements.

    prefill, decode: rows of log2 length, log2 batch, ln ratio.
    """

    prefill: tuple[tuple[float, float, float], ...] = ()
    decode: tuple[tuple[float, float, float], ...] = ()

    def prefill_factor(self, tokens: float, batch: float) -> float:
        """Factor for a pass over `batch` prompts of `tokens` tokens."""
        return _interpolated(self.prefill, tokens, batch)

    def decode_factor(self, context: float, batch: float) -> float:
        """Factor for a decode iteration of `batch` sequences of mean `context`."""
        return _interpolated(self.decode, context, batch)

    def scaled(self, prefill: float, decode: float) -> Correction:
        """The correction with all times of prompts multiplied by `prefill`, and of decode
        iterations by `decode`."""
        return Correction(_scaled_rows(self.prefill, prefill), _scaled_rows(self.decode, decode))


NO_CORRECTION = Correction()


def correction_rows(
    measured: Sequence[tuple[float, float, float]], estimates: Sequence[float]
) -> tuple[tuple[float, float, float], ...]:
    """Correction rows from measured (length, batch, ms) rows and the roofline's ms for each row."""
    return tuple(
        (math.log2(max(length, 1.0)), math.log2(max(batch, 1.0)), math.log(ms / estimate))
        for (length, batch, ms), estimate in zip(measured, estimates, strict=True)
    )


def _scaled_rows(
    table_rows: tuple[tuple[float, float, float], ...], factor: float
) -> tuple[tuple[float, float, float], ...]:
    if not table_rows:
        return ((0.0, 0.0, math.log(factor)),)
    return tuple((x, y, value + math.log(factor)) for x, y, value in table_rows)


def _interpolated(
    table_rows: tuple[tuple[float, float, float], ...], length: float, batch: float
) -> float:
    """Mean of the nearest rows, weighted by inverse distance. Beyond the table, its nearest rows
    apply."""
    if not table_rows:
        return 1.0
    x, y = math.log2(max(length, 1.0)), math.log2(max(batch, 1.0))
    near = sorted(((k[0] - x) ** 2 + (k[1] - y) ** 2, k[2]) for k in table_rows)[:_NEAREST]
    if near[0][0] < _SAME_POINT**2:
        return math.exp(near[0][1])
    weight = total = 0.0
    for squared, log_factor in near:
        weight += 1.0 / squared
        total += log_factor / squared
    return math.exp(total / weight)
