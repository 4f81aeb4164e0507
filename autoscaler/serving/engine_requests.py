"""Input and output types of the batching machines: requests, limits, events and timings of an
engine.

Times are domain milliseconds as floats, from an origin that the caller chooses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from autoscaler.domain.validation import InvalidValue, finite, whole

_MAX_TOKENS = 10**8


class Part(StrEnum):
    """The part of a request that an engine computes: prefill, decode, or both."""

    WHOLE = "whole"
    PREFILL = "prefill"
    DECODE = "decode"


class Timings(Protocol):
    """Interface of step times in ms, e.g. `autoscaler.performance.step_times.StepTimes`."""

    def prefill_ms(self, tokens: float, context: float = 0.0) -> float:
        """Time of one pass over `tokens` prompt tokens after `context` cached tokens."""
        ...

    def decode_ms(self, batch: float, context_tokens: float) -> float:
        """Time of one iteration of `batch` sequences of mean length `context_tokens`."""
        ...

    def mixed_ms(
        self, prompt_tokens: float, prompt_context: float, decodes: float, context_tokens: float
    ) -> float:
        """Time of one iteration with a prompt chunk and `decodes` decoding sequences."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one engine. max_seqs: maximum of sequences in one iteration. kv_tokens: size of the
    KV cache in tokens. batched_tokens: maximum of tokens in one iteration; longer prompts are cut
    into chunks. lease_ms: time for which an engine holds the KV of a finished prefill for its
    decode instance. block_tokens: tokens of a block of the prefix cache; 0: no prefix cache.
    """

    max_seqs: int
    kv_tokens: int
    batched_tokens: int = 2048
    lease_ms: float = 30_000.0
    block_tokens: int = 0

    def __post_init__(self) -> None:
        whole("limits: max_seqs", self.max_seqs, 1, 100_000)
        whole("limits: kv_tokens", self.kv_tokens, 1, 10**12)
        # A full batch of decodes must leave room for a prompt; otherwise prompts could wait
        # forever.
        whole("limits: batched_tokens", self.batched_tokens, self.max_seqs + 1, _MAX_TOKENS)
        finite("limits: lease_ms", self.lease_ms, 0.0, 1e9)
        whole("limits: block_tokens", self.block_tokens, 0, _MAX_TOKENS)


@dataclass(frozen=True, slots=True)
class Work:
    """One request. output_tokens: number of tokens to generate (exactly 1 for a PREFILL).

    transfer_ms: time to transfer the request's KV (DECODE only). blocks: hashes of the full blocks
    of its prompt and, where they are known, of its answer.
    """

    id: int
    prompt_tokens: int
    output_tokens: int
    part: Part = Part.WHOLE
    transfer_ms: float = 0.0
    blocks: Sequence[int] = ()

    def __post_init__(self) -> None:
        whole("prompt_tokens", self.prompt_tokens, 1, _MAX_TOKENS)
        whole("output_tokens", self.output_tokens, 1, _MAX_TOKENS)
        finite("transfer_ms", self.transfer_ms, 0.0, 1e9)
        if self.part is Part.PREFILL and self.output_tokens != 1:
            raise InvalidValue("output_tokens", self.output_tokens, "1 for a prefill")


class FirstToken(NamedTuple):
    """A request generated its first token. cached_tokens: tokens of its prompt that came from the
    prefix cache."""

    id: int
    at_ms: float
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Tokens:
    """A request generated `count` further tokens. `at_ms` is the time of the last of them."""

    id: int
    count: int
    at_ms: float


class Finished(NamedTuple):
    """A request generated all of its tokens. If it is a PREFILL, the engine holds its KV until the
    lease ends."""

    id: int
    at_ms: float


@dataclass(frozen=True, slots=True)
class LeaseExpired:
    """The KV of a finished prefill was dropped, because no decode instance fetched it in time."""

    id: int
    at_ms: float


Event = FirstToken | Tokens | Finished | LeaseExpired
