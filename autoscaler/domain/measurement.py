"""What a user's own benchmark says of a model on a GPU.

Owns the value, which is declared with the cluster. How it is fitted and used is in `performance`.
"""

from __future__ import annotations

from dataclasses import dataclass

Architecture = tuple[int, int, int, int]
"""What makes two names the same model: layers, hidden size, vocabulary, experts."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a user's benchmark says of one model on `tp` GPUs of type `gpu`.

    prefill, decode: measured over estimated time of prompts and of decode iterations. error: mean
    absolute error left after that, a fraction. day: YYYY-MM-DD. first_token_ms: time outside of
    iterations before a first token; None where the points do not tell it from the prompts' own.
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
