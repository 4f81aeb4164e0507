"""A user's own benchmark of a model on a GPU. The package `performance` fits and uses it."""

from __future__ import annotations

from dataclasses import dataclass

Architecture = tuple[int, int, int, int]
"""Identifies a model under several names: layers, hidden size, vocabulary, experts."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """A user's benchmark of one model on `tp` GPUs of type `gpu`.

    prefill, decode: ratio of measured to estimated time, of prompts and of decode iterations.
    error: mean absolute error after correction by these ratios, as a fraction. day: YYYY-MM-DD.
    first_token_ms: time outside of iterations before a first token; None if the points cannot
    separate it from the prompts' time.
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
