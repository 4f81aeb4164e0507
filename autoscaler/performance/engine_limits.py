"""Limits of one engine iteration and of KV transfer, shared by simulated engines and the attainment
model."""

from __future__ import annotations

from autoscaler.domain.workload import Phase

BATCHED_TOKENS = {Phase.PREFILL: 8192, Phase.DECODE: 2048, Phase.AGGREGATED: 2048}
"""Maximal tokens per iteration by phase, in the range of vLLM's serving defaults. Prefill instances
use large chunks; other instances use small chunks, so that decoding requests pause only briefly."""

KV_LINK_GB_PER_S = 25.0
"""Effective rate of KV transfer between nodes: one 200 Gbit/s network card (an assumption)."""


def batched_tokens(phase: Phase, max_seqs: int) -> int:
    """Maximal tokens per iteration in `phase`, but enough for a full batch of decodes and part of a
    prompt."""
    return max(BATCHED_TOKENS[phase], max_seqs + 1)
