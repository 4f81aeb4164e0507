"""Limits of one engine iteration and of KV transfer, shared by simulated engines and the attainment
model."""

from __future__ import annotations

from autoscaler.domain.workload import Phase

BATCHED_TOKENS = {Phase.PREFILL: 8192, Phase.DECODE: 2048, Phase.AGGREGATED: 2048}
"""Tokens per iteration, in the range of vLLM's serving defaults. Long chunks suit an instance that
only prefills; short ones keep the pauses of decoding requests short."""

KV_LINK_GB_PER_S = 25.0
"""Effective rate of KV transfer between nodes: one 200 Gbit/s network card (an assumption)."""


def batched_tokens(phase: Phase, max_seqs: int) -> int:
    """Tokens per iteration in `phase`. A full batch of decodes must leave room for a prompt."""
    return max(BATCHED_TOKENS[phase], max_seqs + 1)
