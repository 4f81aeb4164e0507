"""The interval of the prediction of a model's planned instances, in multiples of the planned
capacity, and the GPU types to which learnt capacity applies.

Evidence about one GPU type says little about another. If a GPU type is added, the share of the
capacity that it takes loses its part of a learnt gain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.combo import Combo
from autoscaler.performance.profile_sources import cluster_profile
from autoscaler.planning.capacity_provenance import prediction_of
from autoscaler.rollout.serving_group import ServingGroup
from autoscaler.state.model_state import Capacity

_FALLS = 0.99
"""Ratio of two values of `Capacity.predicted` below which the declaration has changed. Changed
weights of combos cause smaller differences."""


def update_interval(
    known: Capacity,
    groups: Iterable[ServingGroup],
    combos: Mapping[str, Combo],
    cluster: Cluster,
) -> Capacity:
    """`known` with the interval of the model's groups, and without the gain of GPU types that are
    new. Nothing can be learnt about combos without a prediction, except the measured speed of
    their version."""
    counts = Counter(group.combo_id for group in groups if group.counts)
    if not counts:
        return known
    gpu_of = {pool.id: pool.gpu.name for pool in cluster.pools}
    if not all(_is_predicted(combos.get(combo_id), gpu_of) for combo_id in counts):
        return replace(known, predicted=1.0, highest=max(1.0, known.speed))
    profile, total, predicted, highest, new = cluster_profile(cluster), 0.0, 0.0, 0.0, 0.0
    types: set[str] = set()
    for combo_id, count in counts.items():
        combo = combos[combo_id]
        rate = count * combo.req_per_s
        own = {gpu_of[member.pool] for member in combo.members}
        expected, high = prediction_of(combo, cluster, profile)
        total, types = total + rate, types | own
        predicted, highest = predicted + rate * expected, highest + rate * high
        new += rate if known.gpus and not own <= {*known.gpus} else 0.0
    highest *= max(1.0, known.speed)
    gain = max(0.0, known.derate - 1.0)
    derate = known.derate - gain * new / total
    if gain and not new and predicted / total < _FALLS * known.predicted:
        # Plans now count on a larger share of the prediction, e.g. after a measurement.
        derate = max(1.0, derate * predicted / total / known.predicted)
    return replace(
        known,
        derate=min(derate, max(1.0, highest / total)),
        predicted=round(predicted / total, 6),
        highest=round(highest / total, 6),
        gpus=tuple(sorted(types)),
    )


def _is_predicted(combo: Combo | None, pools: Container[str]) -> bool:
    """Whether `combo` was evaluated, is no cell, and has all of its `pools`."""
    return (
        combo is not None
        and not combo.paths
        and all(member.pool in pools for member in combo.members)
    )
