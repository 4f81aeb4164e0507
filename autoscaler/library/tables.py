"""The throughput table T̂ that a library is built from.

Owns which part of the performance model a request uses. Knows nothing of multisets.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from autoscaler.domain.workload import Phase
from autoscaler.library.request import LibraryRequest
from autoscaler.performance.profile import Profile
from autoscaler.performance.throughput import instance_throughput, stage_table


def throughput_table(request: LibraryRequest, profile: Profile) -> npt.NDArray[np.float64]:
    """Requests/s, shape (stages, configurations, layers), non-increasing in layers.

    For an engine with pipelines: Coral's T̂ under SLO / stages (sec. 4.2); up to max_nodes stages.
    For a single-node engine: the whole instance's rate, with the wait for a prefill slot at
    the request's utilisation counted against the TTFT; one stage, all layer counts alike.
    Configurations over which the engine cannot split the model are 0.
    """
    model, configs = request.model, request.configs
    if request.engine.single_node:
        table = np.zeros((1, len(configs), model.layers))
        for c, node in enumerate(configs):
            rate = instance_throughput(
                model,
                node,
                request.phase,
                request.slo,
                request.bucket,
                profile,
                request.utilisation,
            )
            table[0, c, :] = rate.req_per_s
    else:
        limit = request.slo.ttft_ms if request.phase is Phase.PREFILL else request.slo.tpot_ms
        table = stage_table(
            model, configs, request.phase, limit, request.bucket, request.max_nodes, profile
        )
    for c, node in enumerate(configs):
        if not request.engine.runs(model, node):
            table[:, c, :] = 0.0
    return np.ascontiguousarray(table)


def uncertain_configs(request: LibraryRequest, profile: Profile) -> npt.NDArray[np.bool_]:
    """Per configuration, whether estimates on it are marked uncertain."""
    return np.array(
        [profile.uncertain(request.model, node.gpu) for node in request.configs], np.bool_
    )
