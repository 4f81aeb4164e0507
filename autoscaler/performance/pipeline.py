"""Step times of one instance that spans several nodes; each node holds some of the layers.

A pipeline of S stages works on S batches at once, one per stage. It therefore acts as S engines
("lanes") in turn: an iteration of a lane passes every stage, each in the time of the slowest stage.
Pure Python, as `step_times`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.validation import InvalidValue, whole
from autoscaler.domain.workload import Phase
from autoscaler.performance.memory import cache_of
from autoscaler.performance.profile import Profile
from autoscaler.performance.step_times import StepTimes, most_sequences, step_times

HOP_GB_S = 12.5
HOP_LATENCY_MS = 0.05
"""(bandwidth in 1e9 bytes/s, round trip in ms) of the link between pipeline nodes: 100 Gbit/s
Ethernet."""

_PROMPT_TOKENS, _BATCH, _CONTEXT = 2048, 32, 1024  # a typical load to compare stages


@dataclass(frozen=True, slots=True)
class PipelineSlices:
    """The slices of an instance in the order of their stages, with the number of layers on each.

    longest_tokens: tokens of the longest request, which must fit a lane.
    """

    stages: tuple[tuple[NodeSlice, int], ...]
    longest_tokens: int

    def __post_init__(self) -> None:
        if len(self.stages) < 2:
            raise InvalidValue("pipeline: stages", len(self.stages), "at least 2")
        for _, layers in self.stages:
            whole("pipeline: layers", layers, 1, 10_000)


def pipeline_times(
    model: ModelSpec, slices: PipelineSlices, phase: Phase, profile: Profile
) -> tuple[StepTimes, int]:
    """Times of one lane, with the lane's share of the KV cache and of the slots, and the number of
    lanes.

    With J layers in the slowest of S stages, an iteration takes the time of S J layers on the slice
    of that stage, S times its fixed time, and S hops. If memory holds fewer than S requests of
    maximal length, the number of lanes is the number of requests that fit, at least one. If the
    weights do not fit, the KV cache has 0 tokens.
    """
    stages = slices.stages
    count = len(stages)
    if sum(layers for _, layers in stages) != model.layers:
        raise InvalidValue("pipeline: layers", [n for _, n in stages], f"{model.layers} in all")
    each = [(step_times(model, node, phase, profile), layers) for node, layers in stages]
    slowest, held = max(each, key=lambda one: _stage_ms(one[0], one[1], phase))
    caches = (cache_of(model, node.gpu, node.gpus, n) for node, n in stages)
    cache = min(caches, key=lambda one: one.longest_tokens())
    tokens = cache.longest_tokens()
    lanes = max(1, min(count, int(tokens // max(1, slices.longest_tokens))))
    bound, eff = slowest.roofline, slowest.roofline.eff
    # A stage of J layers sends the hidden state once, so each layer adds 1/J of the transfer time.
    passes = bound.gpu.mem_bw_gb_s * eff.weights / (HOP_GB_S * held)
    eff = replace(
        eff,
        step_ms=count * (eff.step_ms + HOP_LATENCY_MS),
        sequence_us=count * eff.sequence_us,
        elementwise=eff.elementwise + passes,
    )
    lane = replace(
        slowest,
        roofline=replace(bound, model=replace(model, layers=count * held), eff=eff),
        kv_capacity_tokens=tokens / lanes,
        cache=cache.scaled(1.0 / lanes),
        max_batch=math.ceil(most_sequences(cache, phase) / lanes),
        uncertain=any(times.uncertain for times, _ in each),
    )
    return lane, lanes


def _stage_ms(times: StepTimes, layers: int, phase: Phase) -> float:
    if phase is Phase.PREFILL:
        return times.roofline.prefill_ms(_PROMPT_TOKENS, 0.0, 1.0, layers)
    return times.roofline.decode_ms(_BATCH, _CONTEXT, layers)
