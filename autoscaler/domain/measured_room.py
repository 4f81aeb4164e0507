"""The room for KV cache that an engine had at a start, as opposed to the predicted room."""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.domain.validation import finite, whole


@dataclass(frozen=True, slots=True)
class MeasuredRoom:
    """The KV cache of one model on `gpus` GPUs of type `gpu`; 0 = not measured.

    arguments: digest of the settings that determine memory (`memory_digest`). kv_tokens: size of
    the KV cache in tokens, for requests of `request_tokens` tokens. kv_bytes: memory for the KV
    cache per GPU. refused_len: the longest request with which the engine refused to start, 0 = it
    started. If neither kv_tokens nor kv_bytes is set, there is no room at all.
    """

    gpu: str
    gpus: int
    arguments: str
    kv_tokens: float = 0.0
    request_tokens: int = 0
    kv_bytes: float = 0.0
    refused_len: int = 0

    def __post_init__(self) -> None:
        whole("measured room: gpus", self.gpus, 1, 64)
        finite("measured room: kv_tokens", self.kv_tokens, 0.0, 1e11)
        finite("measured room: kv_bytes", self.kv_bytes, 0.0, 4e12)
        whole("measured room: request_tokens", self.request_tokens, 0, 10**8)
        whole("measured room: refused_len", self.refused_len, 0, 10**8)
        if self.kv_tokens:
            whole("measured room: request_tokens", self.request_tokens, 1, 10**8)
