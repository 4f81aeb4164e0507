"""The throughput table T̂ from which a library is built: rates of the performance model for a
request. The wait for a prefill slot is subtracted from the time budget of pipeline stages.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from autoscaler.domain.workload import Phase
from autoscaler.performance.profile import Profile
from autoscaler.performance.step_times import step_times
from autoscaler.performance.throughput import instance_throughput, stage_table
from autoscaler.templates.library_request import LibraryRequest


def throughput_table(request: LibraryRequest, profile: Profile) -> npt.NDArray[np.float64]:
    """Requests/s, shape (stages, configurations, layers), not rising with the number of layers.

    At utilisation 0 the table is Coral's T̂ (sec. 4.2), in which a stage may take SLO / S. At
    utilisation ρ > 0 the wait for a prefill slot counts towards the TTFT. The rate of a single node
    is that of the instance model, which includes the wait. In a pipeline of S stages of s ms each,
    a request waits w s before the slowest stage, with w = ρ / 2(1 - ρ) as in an M/D/1 queue, so (S
    + w) s must be within the TTFT. Example: with ρ = 0.8 and two stages, each stage may take a
    quarter of the TTFT instead of half.

    Entries are 0 for configurations over which the engine cannot split the model.
    """
    counts_waiting = request.engine.single_node or request.utilisation > 0
    if request.engine.single_node:
        table = np.zeros((1, len(request.configs), request.model.layers))
    elif counts_waiting and request.phase is Phase.PREFILL:
        table = _prefill_pipelines(request, profile)
    else:
        limit = request.slo.ttft_ms if request.phase is Phase.PREFILL else request.slo.tpot_ms
        table = _stage_table(request, profile, limit, request.max_nodes)
    if counts_waiting:
        # A single stage holds all layers, so only the last entry is used. The others are equal,
        # because the row must not rise.
        table[0] = np.array(_single_node_rates(request, profile))[:, None]
    for c, node in enumerate(request.configs):
        if not request.engine.runs(request.model, node):
            table[:, c, :] = 0.0
    return np.ascontiguousarray(table)


def uncertain_configs(request: LibraryRequest, profile: Profile) -> npt.NDArray[np.bool_]:
    """For each configuration, whether its estimates are uncertain."""
    return np.array(
        [profile.uncertain(request.model, node.gpu) for node in request.configs], np.bool_
    )


def _single_node_rates(request: LibraryRequest, profile: Profile) -> list[float]:
    """Requests/s of a single node of each configuration that holds the whole model."""
    return [
        instance_throughput(
            request.model,
            node,
            request.phase,
            request.slo,
            request.bucket,
            profile,
            # At utilisation 0, the rate is the maximum sustained rate.
            request.utilisation or 1.0,
        ).req_per_s
        for node in request.configs
    ]


def _prefill_pipelines(request: LibraryRequest, profile: Profile) -> npt.NDArray[np.float64]:
    wait = request.utilisation / (2.0 * (1.0 - request.utilisation))
    first_token_ms = max(
        step_times(request.model, node, request.phase, profile).first_token_ms
        for node in request.configs
    )
    left_ms = max(request.slo.ttft_ms - first_token_ms, 1e-3)
    rows = [
        # Multiply by the number of stages, because stage_table divides its limit by it.
        _stage_table(request, profile, left_ms * stages / (stages + wait), stages)[stages - 1]
        for stages in range(1, request.max_nodes + 1)
    ]
    return np.stack(rows)


def _stage_table(
    request: LibraryRequest, profile: Profile, limit_ms: float, most: int
) -> npt.NDArray[np.float64]:
    return stage_table(
        request.model, request.configs, request.phase, limit_ms, request.bucket, most, profile
    )
