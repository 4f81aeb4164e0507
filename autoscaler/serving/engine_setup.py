"""Timings, limits and start-up time of one engine, from its launch options.

It combines catalogue, profile and formulas for simulated engines and other callers that have launch
options but no declared cluster.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from autoscaler.domain.measurement import Measurement
from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.validation import InvalidValue, whole
from autoscaler.domain.workload import Phase
from autoscaler.performance import catalog
from autoscaler.performance.adapter_memory import with_adapters
from autoscaler.performance.engine_arguments import engine_memory
from autoscaler.performance.engine_limits import KV_LINK_GB_PER_S, batched_tokens
from autoscaler.performance.memory import cache_of
from autoscaler.performance.pipeline import PipelineSlices, pipeline_times
from autoscaler.performance.profile import Profile
from autoscaler.performance.profile_sources import packaged_with_measurements
from autoscaler.performance.roofline import kv_transfer_ms
from autoscaler.performance.startup import startup_s
from autoscaler.performance.step_times import StepTimes, step_times
from autoscaler.serving.engine_requests import Limits
from topics.lora_adapters import Adapter, in_batch, rank_limit

__all__ = [
    "EngineSetup", "InvalidValue", "Measurement", "ModelSpec", "engine_setup", "engine_startup_s",
    "startable_sequences",
]  # fmt: skip


_SURE_BLOCKS = 0.85  # the share of the predicted state blocks that an engine surely has


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """Timings and limits of one engine.

    startup_s: domain seconds. kv_gb_s: rate at which KV arrives from other nodes, in 1e9 bytes/s.
    lanes: number of batches that a pipeline works on at the same time; timings and limits apply to
    one lane.
    """

    model: ModelSpec
    times: StepTimes
    limits: Limits
    startup_s: float
    kv_gb_s: float = KV_LINK_GB_PER_S
    lanes: int = 1

    def transfer_ms(self, tokens: int) -> float:
        """Time to transfer the KV of `tokens` tokens from a prefill to a decode instance."""
        return kv_transfer_ms(self.model, tokens, self.kv_gb_s)


def _model_and_slice(
    source: str | ModelSpec,
    gpu: str,
    gpus: int,
    quantization: str | None,
    args: tuple[str, ...] = (),
) -> tuple[ModelSpec, NodeSlice]:
    spec = catalog.model(source) if isinstance(source, str) else source
    if quantization is not None:
        spec = catalog.quantized(spec, quantization)
    if args:
        spec = engine_memory(args).apply_to(spec)
    return spec, NodeSlice(catalog.gpu(gpu), gpus)


def engine_startup_s(
    source: str | ModelSpec, gpu: str, gpus: int, quantization: str | None = None, layers: int = 0
) -> float:
    """Predicted seconds from launch to ready. layers: number of layers of one pipeline stage, 0 =
    all layers. Raises InvalidValue for unknown names."""
    return startup_s(*_model_and_slice(source, gpu, gpus, quantization), layers)


def startable_sequences(
    source: str | ModelSpec, gpu: str, gpus: int, most: int, args: tuple[str, ...] = (),
    quantization: str | None = None,
) -> int:  # fmt: skip
    """The largest max_num_seqs, at most `most`, with which vLLM starts. Each sequence of a model
    with recurrent layers needs a block for its state; vLLM refuses to start with more sequences
    than blocks. `_SURE_BLOCKS` of the predicted blocks count. Raises InvalidValue for unknown
    names."""
    spec, node = _model_and_slice(source, gpu, gpus, quantization, args)
    blocks = cache_of(replace(spec, max_seqs=most), node.gpu, gpus).state_blocks
    return most if blocks is None else max(1, min(most, int(_SURE_BLOCKS * blocks)))


def engine_setup(
    source: str | ModelSpec,
    gpu: str,
    gpus: int,
    phase: str,
    max_len: int,
    quantization: str | None = None,
    max_num_seqs: int | None = None,
    kv_gb_s: float | None = None,
    measurements: tuple[Measurement, ...] = (),
    stages: tuple[tuple[str, int, int], ...] = (),
    args: tuple[str, ...] = (),
    adapters: tuple[Adapter, ...] = (),
) -> EngineSetup:
    """The engine of `source` on `gpus` GPUs of type `gpu` with tensor parallelism over all of them.

    stages: for an engine over several nodes, (GPU type, GPUs, layers) of each node. args: vLLM's
    arguments; only arguments that change the memory have an effect. adapters: LoRA adapters,
    which take memory.

    Raises InvalidValue for an unknown model, GPU, phase or quantization, for weights that do not
    fit, and for a KV cache that is too small for a request of `max_len` tokens (a real engine would
    not start).
    """
    if phase not in tuple(Phase):
        raise InvalidValue("phase", phase, " or ".join(Phase))
    spec, node = _model_and_slice(source, gpu, gpus, quantization, args)
    if adapters:
        spec = with_adapters(spec, in_batch(args, len(adapters)), rank_limit(adapters))
    place: NodeSlice | PipelineSlices = node
    if stages:
        slices = tuple((NodeSlice(catalog.gpu(name), n), layers) for name, n, layers in stages)
        place = PipelineSlices(slices, max_len)
    found = setup_on(
        spec, place, Phase(phase), max_len, packaged_with_measurements(measurements), max_num_seqs
    )
    return found if kv_gb_s is None else replace(found, kv_gb_s=kv_gb_s)


def setup_on(
    spec: ModelSpec,
    place: NodeSlice | PipelineSlices,
    phase: Phase,
    max_len: int,
    profile: Profile,
    max_num_seqs: int | None = None,
) -> EngineSetup:
    """The engine of `spec` on a slice of one node or on a pipeline. Raises InvalidValue as
    `engine_setup` does."""
    lanes = 1
    if isinstance(place, NodeSlice):
        times, names = step_times(spec, place, phase, profile), place.name
        start_s = startup_s(spec, place)
    else:
        times, lanes = pipeline_times(spec, place, phase, profile)
        names = " and ".join(node.name for node, _ in place.stages)
        start_s = max(startup_s(spec, node, layers) for node, layers in place.stages)
    kv_tokens = int(times.kv_capacity_tokens)
    if kv_tokens < 1:
        raise InvalidValue("gpus", names, f"a slice that holds the weights of {spec.name}")
    whole("max_len", max_len, 1, kv_tokens)
    seqs = times.max_batch if max_num_seqs is None else math.ceil(max_num_seqs / lanes)
    batched = batched_tokens(phase, seqs)
    return EngineSetup(spec, times, Limits(seqs, kv_tokens, batched), start_s, lanes=lanes)
