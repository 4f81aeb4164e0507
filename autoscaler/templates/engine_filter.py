"""What an engine can run: the filter between all placements and those that can be started.

Owns `EngineCapabilities` and the packaged three. Knows nothing of launch lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.slices import NodeSlice


class PipelineNodes(StrEnum):
    """Which nodes may form one multi-node template."""

    NONE = "none"
    SAME_SLICE = "same-slice"
    SAME_SIZE = "same-size"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class EngineCapabilities:
    """What templates an engine declares to run.

    pipeline: which nodes may be joined by a pipeline with uneven layers: none, only equal slices,
    slices with equally many GPUs (one tensor-parallel size for all stages), or any.
    data_parallel_stages: several nodes may share one stage and its load (Coral's full library).
    split_heads: tensor parallelism needs attention heads that divide by the GPU count, and KV
    heads that divide by it or into it.
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
        """Whether the engine can split `model` over the GPUs of `node`."""
        if not self.split_heads:
            return True
        if model.heads % node.gpus:
            return False
        return model.kv_heads % node.gpus == 0 or node.gpus % model.kv_heads == 0

    def families(self, configs: tuple[NodeSlice, ...]) -> list[int]:
        """A number per configuration; nodes of one template must have the same."""
        if self.pipeline is PipelineNodes.SAME_SIZE:
            return [node.gpus for node in configs]
        if self.pipeline is PipelineNodes.ANY:
            return [0] * len(configs)
        return list(range(len(configs)))


VLLM = EngineCapabilities("vllm")
"""One node, tensor parallel: what every vLLM runs."""

VLLM_PIPELINE = EngineCapabilities("vllm-pipeline", PipelineNodes.SAME_SIZE)
"""vLLM with uneven pipelines over nodes declared (one tensor-parallel size for all stages)."""

CORAL = EngineCapabilities("coral", PipelineNodes.ANY, data_parallel_stages=True, split_heads=False)
"""Coral's full library: any nodes, data parallel within a stage. vLLM cannot run it."""

ENGINES = {engine.name: engine for engine in (VLLM, VLLM_PIPELINE, CORAL)}
