"""Step times of one engine instance: what a simulated engine and the planner ask for.

Owns `StepTimes`. Knows no SLO and no queue. Pure Python, picklable, microseconds a call.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.domain.models import ModelSpec
from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.workload import Phase
from autoscaler.performance.memory import kv_capacity_tokens
from autoscaler.performance.profile import Profile
from autoscaler.performance.roofline import Roofline, roofline

# Engines bound the sequences of one iteration; a prefill instance holds few at a time.
_MAX_SEQUENCES = {Phase.PREFILL: 64, Phase.DECODE: 512, Phase.AGGREGATED: 256}


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Times of one instance.  kv_capacity_tokens: KV cache it holds, 0 = the model does not fit.

    max_batch: most sequences in one iteration.  uncertain: the profile has no measurement of this
    kind of model or GPU behind it.
    """

    roofline: Roofline
    kv_capacity_tokens: float
    max_batch: int
    uncertain: bool

    def prefill_ms(self, tokens: float, context: float = 0.0) -> float:
        """One pass over `tokens` new prompt tokens behind `context` cached ones."""
        return self.roofline.prefill_ms(tokens, context)

    def decode_ms(self, batch: float, context_tokens: float) -> float:
        """One decode iteration of `batch` sequences of mean length `context_tokens`."""
        return self.roofline.decode_ms(batch, context_tokens)

    def mixed_ms(
        self, prompt_tokens: float, prompt_context: float, decodes: float, context_tokens: float
    ) -> float:
        """One iteration that carries a prompt chunk and `decodes` decoding sequences."""
        return self.roofline.mixed_ms(prompt_tokens, prompt_context, decodes, context_tokens)


def step_times(model: ModelSpec, node: NodeSlice, phase: Phase, profile: Profile) -> StepTimes:
    """Step times of `model` in `phase` on `node`, tensor parallel over all of its GPUs."""
    return StepTimes(
        roofline=roofline(model, node.gpu, node.gpus, profile.efficiency(node.gpu.name)),
        kv_capacity_tokens=kv_capacity_tokens(model, node.gpu, node.gpus),
        max_batch=_MAX_SEQUENCES[phase],
        uncertain=profile.uncertain(model, node.gpu.name),
    )
