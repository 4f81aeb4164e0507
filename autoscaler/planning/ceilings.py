"""Node ceilings over two markets (`Pool.max_of_both`) as arrays of a `MixProblem`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoscaler.domain.cluster import Pool, pools_by_shared_limit
from autoscaler.optimizer.array_types import Floats


def ceilings(pools: Sequence[Pool]) -> tuple[Floats, Floats]:
    """The arrays `together` (t, k) and `together_max` (t,) of a `MixProblem`: t ceilings over the k
    `pools`."""
    groups = list(pools_by_shared_limit(pools).values())
    members = [[float(pool in group) for pool in pools] for group in groups]
    masks = np.array(members, dtype=np.float64).reshape(len(groups), len(pools))
    return masks, np.array([float(group[0].max_of_both) for group in groups])
