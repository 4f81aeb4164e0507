"""What bounds one iteration of an engine and the way of KV between engines.

Owns the constants that both the simulated engines and the attainment model go by. Knows no model.
"""

from __future__ import annotations

from autoscaler.domain.workload import Phase

BATCHED_TOKENS = {Phase.PREFILL: 8192, Phase.DECODE: 2048, Phase.AGGREGATED: 2048}
"""Tokens of one iteration: vLLM's defaults for serving lie in this range. Long chunks suit an
instance that only prefills; short ones keep the pauses of decoding requests short."""

KV_LINK_GB_PER_S = 25.0
"""Effective rate at which KV moves between nodes: one 200 Gbit/s network card (an assumption)."""


def batched_tokens(phase: Phase, max_seqs: int) -> int:
    """Tokens of one iteration in `phase`: a full batch of decodes must leave room for a prompt."""
    return max(BATCHED_TOKENS[phase], max_seqs + 1)
