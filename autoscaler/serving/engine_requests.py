"""Requests, limits, events and timings of an engine: the values around the batching machine.

Times are domain milliseconds as floats, from an origin that the caller chooses.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from autoscaler.domain.validation import InvalidValue, finite, whole

_MAX_TOKENS = 10**8


class Part(StrEnum):
    """The part of a request that an engine does: prefill, decode, or both."""

    WHOLE = "whole"
    PREFILL = "prefill"
    DECODE = "decode"


class Timings(Protocol):
    """Step times in ms; `autoscaler.performance.step_times.StepTimes` is one."""

    def prefill_ms(self, tokens: float, context: float = 0.0) -> float:
        """One pass over `tokens` prompt tokens behind `context` cached ones."""
        ...

    def decode_ms(self, batch: float, context_tokens: float) -> float:
        """One iteration of `batch` sequences of mean length `context_tokens`."""
        ...

    def mixed_ms(
        self, prompt_tokens: float, prompt_context: float, decodes: float, context_tokens: float
    ) -> float:
        """One iteration with a prompt chunk and decodes."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one engine.

    max_seqs: sequences in one iteration. kv_tokens: tokens of KV cache. batched_tokens: tokens of
    one iteration; longer prompts are cut into chunks. lease_ms: how long the KV of a finished
    prefill waits for its decode instance.
    """

    max_seqs: int
    kv_tokens: int
    batched_tokens: int = 2048
    lease_ms: float = 30_000.0

    def __post_init__(self) -> None:
        whole("limits: max_seqs", self.max_seqs, 1, 100_000)
        whole("limits: kv_tokens", self.kv_tokens, 1, 10**12)
        # A full batch of decodes must leave room for a prompt, or prompts could starve.
        whole("limits: batched_tokens", self.batched_tokens, self.max_seqs + 1, _MAX_TOKENS)
        finite("limits: lease_ms", self.lease_ms, 0.0, 1e9)


@dataclass(frozen=True, slots=True)
class Work:
    """One request. output_tokens: tokens that it generates (exactly 1 for a PREFILL).

    transfer_ms: transfer time of its KV (DECODE only).
    """

    id: int
    prompt_tokens: int
    output_tokens: int
    part: Part = Part.WHOLE
    transfer_ms: float = 0.0

    def __post_init__(self) -> None:
        whole("prompt_tokens", self.prompt_tokens, 1, _MAX_TOKENS)
        whole("output_tokens", self.output_tokens, 1, _MAX_TOKENS)
        finite("transfer_ms", self.transfer_ms, 0.0, 1e9)
        if self.part is Part.PREFILL and self.output_tokens != 1:
            raise InvalidValue("output_tokens", self.output_tokens, "1 for a prefill")


class FirstToken(NamedTuple):
    """A request generated its first token."""

    id: int
    at_ms: float


@dataclass(frozen=True, slots=True)
class Tokens:
    """A request generated `count` further tokens, the last of them at `at_ms`."""

    id: int
    count: int
    at_ms: float


class Finished(NamedTuple):
    """A request generated all of its tokens; the KV of a PREFILL is now under a lease."""

    id: int
    at_ms: float


@dataclass(frozen=True, slots=True)
class LeaseExpired:
    """No decode instance fetched the KV of a finished prefill in time; it was dropped."""

    id: int
    at_ms: float


Event = FirstToken | Tokens | Finished | LeaseExpired
