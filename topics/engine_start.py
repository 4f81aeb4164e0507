"""The memory of an engine after its start, as its log and its metrics state it."""

from __future__ import annotations

from dataclasses import dataclass

from topics import checks

REFUSALS = ("", "no_kv_memory", "too_long", "states", "out_of_memory")
"""Why an engine refused to start for lack of memory; "" if it did not: no memory is left for the KV
cache, a request of maximal length does not fit the KV cache, the states of all sequences do not
fit, or the GPU ran out of memory."""
_MOST_BYTES = 4 * 10**12
_MOST_TOKENS = 10**11
_MOST_LENGTH = 10**8


@dataclass(frozen=True, slots=True)
class EngineStart:
    """The start of one engine; 0 = not stated.

    kv_bytes: memory for the KV cache per GPU, the least of all GPUs. kv_tokens: size of the KV
    cache in tokens, for requests of `request_tokens` tokens. blocks, block_tokens: blocks of the KV
    cache and tokens per block, from the metrics. weights_bytes, graphs_bytes: memory per GPU for
    weights and CUDA graphs, the most of all GPUs. refused: one of `REFUSALS`. max_len: longest
    request with which the engine started or refused to start.
    """

    kv_bytes: int = 0
    kv_tokens: int = 0
    request_tokens: int = 0
    blocks: int = 0
    block_tokens: int = 0
    weights_bytes: int = 0
    graphs_bytes: int = 0
    refused: str = ""
    max_len: int = 0

    def __post_init__(self) -> None:
        for key in ("kv_bytes", "weights_bytes", "graphs_bytes"):
            checks.count(key, getattr(self, key), _MOST_BYTES)
        checks.count("kv_tokens", self.kv_tokens, _MOST_TOKENS)
        checks.count("blocks", self.blocks, _MOST_TOKENS)
        for key in ("request_tokens", "block_tokens", "max_len"):
            checks.count(key, getattr(self, key), _MOST_LENGTH)
        checks.one_of("refused", self.refused, REFUSALS)
        if self.kv_tokens and not self.request_tokens:
            raise checks.InvalidValue("request_tokens", 0, "above 0 if kv_tokens is")
        if bool(self.blocks) is not bool(self.block_tokens):
            raise checks.InvalidValue("block_tokens", self.block_tokens, "above 0 if blocks is")
