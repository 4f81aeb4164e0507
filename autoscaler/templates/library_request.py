"""The inputs of a template library, and the hash over all of them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import orjson

from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.validation import InvalidValue, finite, whole
from autoscaler.domain.workload import Lengths, Phase, Slo
from autoscaler.templates.engine_filter import VLLM, EngineCapabilities
from autoscaler.templates.partitions import MAX_NODES

BUILD_VERSION = 2
"""Version of the builder. Increase it if the builder gives another library for the same request."""

MAX_CONFIGS = 48


@dataclass(frozen=True, slots=True)
class LibraryRequest:
    """The request for one library: a model, a phase, its SLO and lengths, and the node slices.

    bucket: the lengths of the requests. engine: the filter of templates (by default vLLM on one
    node). max_nodes (N_max) and max_memory_ratio (rho) limit the multisets, see Coral sec. 4.2.
    utilisation: the load, in [0, 1), at which the wait for a prefill slot is computed; 0 ignores
    the wait, as Coral does. See `throughput_table`.
    """

    model: ModelSpec
    phase: Phase
    slo: Slo
    bucket: Lengths
    configs: tuple[NodeSlice, ...]
    engine: EngineCapabilities = field(default=VLLM)
    profile_hash: str = ""
    max_nodes: int = MAX_NODES
    max_memory_ratio: float = 12.0
    utilisation: float = 0.85

    def __post_init__(self) -> None:
        whole("library: max_nodes", self.max_nodes, 1, MAX_NODES)
        finite("library: max_memory_ratio", self.max_memory_ratio, 1.0, 1e6)
        finite("library: utilisation", self.utilisation, 0.0, 0.999)
        names = [node.name for node in self.configs]
        if not 1 <= len(names) <= MAX_CONFIGS:
            raise InvalidValue("library: configs", len(names), f"1 to {MAX_CONFIGS} node slices")
        for name in names:
            if names.count(name) > 1:
                raise InvalidValue("library: configs", name, "each node slice once")
        if self.phase is Phase.AGGREGATED and not self.engine.single_node:
            raise InvalidValue(
                "library: engine", self.engine.name, "a single-node engine for the aggregated phase"
            )

    @property
    def name(self) -> str:
        """Model and phase for people: "Qwen/Qwen3-32B decode"."""
        return f"{self.model.name} {self.phase}"

    def as_json(self) -> bytes:
        """All fields as JSON with sorted keys, for hashing and storage."""
        return orjson.dumps(self, option=orjson.OPT_SORT_KEYS)


def content_hash(request: LibraryRequest, table: npt.NDArray[np.float64]) -> str:
    """SHA-256 of the request, the throughput table and the version of the builder.

    The table is included because it depends on the formulas of this release and on the profile.
    """
    digest = hashlib.sha256(f"shoal library {BUILD_VERSION}\n".encode())
    digest.update(request.as_json())
    digest.update(repr(table.shape).encode())
    digest.update(np.ascontiguousarray(table, dtype="<f8").tobytes())
    return digest.hexdigest()
