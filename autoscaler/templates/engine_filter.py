"""Filters placements: which templates can an engine run?"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from autoscaler.domain.hardware import GpuSpec
from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.slices import NodeSlice

_LEAST_HBM_GB_S = 1500.0


class PipelineNodes(StrEnum):
    """Nodes that may form one multi-node template: none, equal slices only, slices with equally
    many GPUs (one tensor-parallel size for all stages), or any."""

    NONE = "none"
    SAME_SLICE = "same-slice"
    SAME_SIZE = "same-size"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class EngineCapabilities:
    """The declared capabilities of an engine. pipeline: nodes that may form a pipeline with uneven
    layers. data_parallel_stages: several nodes may share one stage and its load (Coral's full
    library). split_heads: tensor parallelism has three requirements. The GPU count must divide the
    number of attention heads. It must divide the number of KV heads, or be a multiple of it. Each
    GPU's part of every matrix width must be a whole number of quantisation blocks.
    """

    name: str
    pipeline: PipelineNodes = PipelineNodes.NONE
    data_parallel_stages: bool = False
    split_heads: bool = True

    @property
    def single_node(self) -> bool:
        """Whether every template is one node slice."""
        return self.pipeline is PipelineNodes.NONE

    def runs(self, model: ModelSpec, node: NodeSlice) -> bool:
        """Whether the engine can split `model` over the GPUs of `node` and run it on them."""
        return not self.refusal(model, node)

    def refusal(self, model: ModelSpec, node: NodeSlice) -> str:
        """The reason why the engine cannot run `model` on `node`; "" if it can."""
        if model.integer_activations and node.gpu.fp4_tflops > 0.0:
            # vLLM has INT8 kernels for the generations Turing to Hopper. GPUs with FP4 are newer
            # than Hopper.
            return f"{node.gpu.name} has no INT8 products for quantised activations"
        if model.compressed_attention and not _is_hopper_or_newer(node.gpu):
            return f"{node.gpu.name} has no kernels for compressed attention"
        return model.split_refusal(node.gpus) if self.split_heads else ""

    def families(self, configs: tuple[NodeSlice, ...]) -> list[int]:
        """A family number for each of `configs`. Only nodes of the same family may form one
        template."""
        if self.pipeline is PipelineNodes.SAME_SIZE:
            return [node.gpus for node in configs]
        if self.pipeline is PipelineNodes.ANY:
            return [0] * len(configs)
        return list(range(len(configs)))


def _is_hopper_or_newer(gpu: GpuSpec) -> bool:
    """Whether `gpu` is of the Hopper generation or newer: it has FP4 units, or FP8 units and HBM
    (Ada has FP8 units, but GDDR memory)."""
    return gpu.fp4_tflops > 0.0 or (gpu.fp8_tflops > 0.0 and gpu.mem_bw_gb_s >= _LEAST_HBM_GB_S)


VLLM = EngineCapabilities("vllm")
"""A single node with tensor parallelism; every vLLM supports this."""

VLLM_PIPELINE = EngineCapabilities("vllm-pipeline", PipelineNodes.SAME_SIZE)
"""A vLLM for which uneven pipelines over nodes are declared (one tensor-parallel size for all
stages)."""

CORAL = EngineCapabilities("coral", PipelineNodes.ANY, data_parallel_stages=True, split_heads=False)
"""Coral's full library: any nodes, data parallel within a stage. vLLM cannot run it."""

ENGINES = {engine.name: engine for engine in (VLLM, VLLM_PIPELINE, CORAL)}
