"""Builds `ModelDemand` from arrivals per second."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autoscaler.domain.cluster import Policy
from autoscaler.estimate.model_demand import ModelDemand, increase_spans_s
from autoscaler.estimate.windows import Stats

POLICY = Policy()
T0 = 1_700_000_000_000


def demand_of(counts: NDArray[np.int64]) -> ModelDemand:
    """The demand after the last second of `counts`. counts[k]: arrivals in second k."""
    return demand_at(np.concatenate(([0], np.cumsum(counts))), len(counts))


def demand_at(total: NDArray[np.int64], now: int) -> ModelDemand:
    """The demand `now` seconds after the start. total[k]: arrivals in the first k seconds."""

    def count(span: int) -> tuple[int, int]:
        span = min(span, now)
        return span, int(total[now] - total[now - span])

    local_s, local = count(POLICY.local_window_s)
    first = -(-max(0, now - POLICY.global_window_s) // 10)
    blocks = np.diff(total[10 * first : now + 1 : 10]).tolist()
    return ModelDemand(
        tuple(count(span) for span in increase_spans_s(POLICY)),
        Stats(local_s, 0, local, 0, 0, 0, 0, local / local_s, None, None, None, None),
        blocks=tuple((10, arrivals) for arrivals in blocks),
        reported_ms=T0 + now * 1000,
    )
