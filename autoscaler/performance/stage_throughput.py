"""Throughput of node slices as pipeline stages: the table T̂(S, c, j) of Coral sec. 4.2, for the
template search."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.validation import InvalidValue, finite, whole
from autoscaler.domain.workload import Lengths, Phase
from autoscaler.performance.measured_tables import Correction
from autoscaler.performance.memory import kv_capacity_tokens
from autoscaler.performance.pipeline import HOP_GB_S, HOP_LATENCY_MS
from autoscaler.performance.profile import Profile
from autoscaler.performance.roofline import Roofline
from autoscaler.performance.step_times import bind_formulas

Floats = NDArray[np.float64]
_PREFILL_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
# Most prompt tokens of one iteration (vLLM's default on such GPUs).
_MAX_BATCHED_TOKENS = 8192


def stage_table(
    model: ModelSpec,
    configs: Sequence[NodeSlice],
    phase: Phase,
    slo_ms: float,
    lengths: Lengths,
    max_stages: int,
    profile: Profile,
) -> Floats:
    """Requests/s of every configuration with 1..L layers under a stage budget of slo_ms / S.

    Shape (max_stages, len(configs), model.layers): entry [S-1, c, j-1] is T̂ of configs[c] with j
    layers in a pipeline of S stages (Coral sec. 4.2). `slo_ms` is the prefill latency (TTFT) for
    the prefill phase and the time per token for the decode phase. An entry is 0 if the stage is
    impossible, and never increases in j. Raises InvalidValue for the aggregated phase, because it
    has two limits (see `instances.instance_throughput`).
    """
    finite("slo_ms", slo_ms, 1e-3, 1e9)
    whole("max_stages", max_stages, 1, 64)
    if phase is Phase.AGGREGATED:
        raise InvalidValue("phase", phase.value, "prefill or decode")
    table = np.zeros((max_stages, len(configs), model.layers))
    budgets = slo_ms / np.arange(1, max_stages + 1)
    for index, node in enumerate(configs):
        bound, correction = bind_formulas(model, node.gpu, node.gpus, profile)
        if phase is Phase.PREFILL:
            table[:, index] = _prefill(bound, correction, lengths, budgets)
        else:
            table[:, index] = _decode(bound, correction, lengths, budgets)
    return np.maximum.accumulate(table[:, :, ::-1], axis=2)[:, :, ::-1]


def prefill_batches(tokens: float) -> list[int]:
    """Numbers of prompts of `tokens` tokens that one pass may hold; 1 is always among them."""
    return [b for b in _PREFILL_BATCHES if b == 1 or b * tokens <= _MAX_BATCHED_TOKENS]


def decode_batches(limit: int) -> list[int]:
    """Batch sizes to try, up to `limit`: every number up to 32, then in steps of 1/8 of the
    size."""
    sizes = list(range(1, min(limit, 32) + 1))
    while sizes[-1] < limit:
        sizes.append(min(limit, sizes[-1] + sizes[-1] // 8))
    return sizes


def _prefill(bound: Roofline, correction: Correction, lengths: Lengths, budgets: Floats) -> Floats:
    cached = lengths.prefix_hit * lengths.input_tokens
    tokens = lengths.input_tokens - cached
    batches = np.array(prefill_batches(tokens), dtype=float)
    factors = np.array([correction.prefill_factor(tokens, b) for b in batches])
    own = np.full(len(batches), bound.eff.step_ms)
    return _best(bound, batches, factors, own, tokens, cached, lengths.input_tokens, budgets)


def _decode(bound: Roofline, correction: Correction, lengths: Lengths, budgets: Floats) -> Floats:
    context = lengths.input_tokens + 0.5 * lengths.output_tokens
    batches = np.array(decode_batches(512), dtype=float)
    factors = np.array([correction.decode_factor(context, b) for b in batches])
    own = bound.eff.step_ms + batches * bound.eff.sequence_us / 1e3
    rate = _best(bound, batches, factors, own, 1.0, context, max(1.0, context), budgets)
    return rate / lengths.output_tokens


def _best(
    bound: Roofline,
    batches: Floats,
    factors: Floats,
    own_ms: Floats,
    tokens: float,
    context: float,
    kept_tokens: float,
    budgets: Floats,
) -> Floats:
    """Highest sequences/s, (stages, layers), over the batches whose stage time fits the budget.

    kept_tokens: KV cache of a sequence. factors, own_ms: for each batch, the correction by measured
    tables and the time outside of layers. With S stages, S micro-batches are in progress, so a
    stage holds the KV cache of S batches.
    """
    model = bound.model
    layers = np.arange(1.0, model.layers + 1)
    share = layers / model.layers
    per_layer = np.array([bound.layer_ms(tokens * b, b, context) for b in batches])
    head = np.array([bound.head_ms(b) for b in batches])
    hop = HOP_LATENCY_MS + np.array([bound.hop_ms(tokens * b, HOP_GB_S) for b in batches])
    capacity = np.array([kv_capacity_tokens(model, bound.gpu, bound.tp, int(j)) for j in layers])
    stages = np.arange(1.0, len(budgets) + 1)
    # A single stage sends nothing.
    hops = np.where(stages[:, None] > 1, hop[None, :], 0.0)
    computed = factors * (per_layer * layers[:, None] + head * share[:, None] + own_ms)
    time_ms = computed[None, :, :] + hops[:, None, :]
    kept = stages[:, None, None] * batches[None, None, :] * kept_tokens
    allowed = (time_ms <= budgets[:, None, None]) & (kept <= capacity[None, :, None])
    rate: Floats = np.where(allowed, batches[None, None, :] / time_ms * 1e3, 0.0).max(axis=2)
    return rate
