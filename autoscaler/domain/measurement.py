"""A user's own benchmark of a model on a GPU. The package `performance` fits and uses it."""

from __future__ import annotations

from dataclasses import dataclass

Architecture = tuple[int, int, int, int]
"""(layers, hidden size, vocabulary, experts): identifies a model that has several names."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """A user's benchmark of one model on `tp` GPUs of type `gpu`.

    prefill, decode: ratios of measured to estimated time, for prompts and for decode iterations.
    error: mean absolute error after correction by these ratios, as a fraction. day: date,
    YYYY-MM-DD. first_token_ms: time outside of iterations before a first token; None if the points
    cannot separate it from the time of prompts.
    """

    architecture: Architecture
    weight_dtype: str
    gpu: str
    tp: int
    prefill: float
    decode: float
    error: float
    points: int
    day: str
    first_token_ms: float | None = None
