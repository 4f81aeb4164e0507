"""Step times of one engine instance, for simulated engines and the planner.

Combines formulas, factors and measured tables. Pure Python and picklable; a call takes
microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from autoscaler.domain.hardware import GpuSpec
from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.workload import Phase
from autoscaler.performance.kv_pool import KvPool
from autoscaler.performance.measured_tables import NO_CORRECTION, Correction, correction_rows
from autoscaler.performance.memory import cache_of, kv_capacity_tokens
from autoscaler.performance.profile import DEFAULT_ENGINE, Profile
from autoscaler.performance.roofline import Roofline, roofline

# Maximal number of sequences in one iteration of an engine. A prefill instance holds few sequences.
_MAX_SEQUENCES = {Phase.PREFILL: 64, Phase.DECODE: 512, Phase.AGGREGATED: 256}


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Times of one instance, in ms.

    kv_capacity_tokens: tokens of the longest sequence that fits, 0 = the model does not fit. cache:
    the blocks of the KV cache. max_batch: maximum number of sequences in one iteration.
    first_token_ms: time outside of iterations before a first token; it takes no GPU time.
    uncertain: whether the profile lacks measurements of such models or of this GPU.
    """

    roofline: Roofline
    correction: Correction
    kv_capacity_tokens: float
    cache: KvPool
    max_batch: int
    first_token_ms: float
    uncertain: bool

    def kv_tokens_at(self, context_tokens: float) -> float:
        """Tokens of all sequences that fit, if their mean length is `context_tokens`. Windows and
        states of the sequences take memory too."""
        if self.kv_capacity_tokens <= 0.0:
            return 0.0
        return max(self.cache.tokens_at(context_tokens), 1.0)

    def prefill_ms(self, tokens: float, context: float = 0.0, batch: float = 1.0) -> float:
        """Time of one pass over `batch` prompts of `tokens` new tokens after `context` cached
        tokens."""
        factor = self.correction.prefill_factor(tokens, batch)
        return factor * self.roofline.prefill_ms(tokens, context, batch)

    def decode_ms(self, batch: float, context_tokens: float) -> float:
        """Time of one decode iteration of `batch` sequences of mean length `context_tokens`."""
        factor = self.correction.decode_factor(context_tokens, batch)
        return factor * self.roofline.decode_ms(batch, context_tokens)

    def mixed_ms(
        self, prompt_tokens: float, prompt_context: float, decodes: float, context_tokens: float
    ) -> float:
        """Time of one iteration with a prompt chunk and `decodes` decoding sequences."""
        if decodes <= 0:
            return self.prefill_ms(prompt_tokens, prompt_context)
        if prompt_tokens <= 0:
            return self.decode_ms(decodes, context_tokens)
        factor = self.correction.prefill_factor(prompt_tokens + decodes, 1.0)
        return factor * self.roofline.mixed_ms(
            prompt_tokens, prompt_context, decodes, context_tokens
        )


def step_times(model: ModelSpec, node: NodeSlice, phase: Phase, profile: Profile) -> StepTimes:
    """Step times of `model` in `phase` on `node`, tensor parallel over all of its GPUs."""
    bound, correction = bind_formulas(model, node.gpu, node.gpus, profile)
    tokens = kv_capacity_tokens(model, node.gpu, node.gpus)
    cache = cache_of(model, node.gpu, node.gpus)
    return StepTimes(
        roofline=bound,
        correction=correction,
        kv_capacity_tokens=tokens,
        cache=cache,
        max_batch=most_sequences(cache, phase),
        first_token_ms=bound.eff.first_token_ms,
        uncertain=profile.uncertain(model, node.gpu),
    )


def most_sequences(cache: KvPool, phase: Phase) -> int:
    """Highest number of sequences in one iteration of `phase`, with the KV cache `cache`."""
    return max(1, min(_MAX_SEQUENCES[phase], int(cache.sequences_at(1.0))))


@lru_cache(maxsize=1024)
def bind_formulas(
    model: ModelSpec, gpu: GpuSpec, tp: int, profile: Profile, engine: str = DEFAULT_ENGINE
) -> tuple[Roofline, Correction]:
    """The roofline for `model` on `tp` GPUs of type `gpu`, and the correction of its times by
    measured tables."""
    bound = roofline(model, gpu, tp, profile.efficiency(gpu, engine, model.weight_dtype))
    table = profile.table(model, gpu, tp)
    correction = NO_CORRECTION
    if table is not None:
        prefill = [bound.prefill_ms(tokens, 0.0, batch) for tokens, batch, _ in table.prefill]
        decode = [bound.decode_ms(batch, context) for context, batch, _ in table.decode]
        correction = Correction(
            correction_rows(table.prefill, prefill), correction_rows(table.decode, decode)
        )
    own = profile.measurement(model, gpu, tp)
    if own is None:
        return bound, correction
    if own.first_token_ms is not None:
        bound = replace(bound, eff=replace(bound.eff, first_token_ms=own.first_token_ms))
    return bound, correction.scaled(own.prefill, own.decode)
