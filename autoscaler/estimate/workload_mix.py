"""Estimate the shares of workload types among a model's requests, and ignore noise.

Planned shares change once a type is significantly more frequent than planned and enough requests
changed type. The local window decides. A drift that is too slow for it counts if the long window
proves the drift and the local window agrees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autoscaler.domain.component_graph import RequestType
from autoscaler.domain.workload import WorkloadType
from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.estimate.poisson_tests import poisson_tail
from topics.request_shapes import nearest_kind, shape_lengths

Mix = tuple[tuple[str, float], ...]
"""Share of each type, in the order declared; they sum to 1."""

MIN_SHIFT = 0.05
"""The planned shares change only if the total variation from them is at least this."""

_PRIOR_REQUESTS = 20.0
"""Weight of the present shares, in requests."""


def declared_mix(types: Sequence[WorkloadType | RequestType]) -> Mix:
    """The declared shares of `types`."""
    return tuple((kind.name, kind.share) for kind in types)


def estimate_mix(
    current: Mix, types: Sequence[WorkloadType], demand: ModelDemand, significance: float
) -> Mix:
    """The shares to plan for; `current`, the present shares, if no shift is significant.

    significance: probability per call that chance is mistaken for a shift.
    """
    names = [kind.name for kind in types]
    local = _counts(types, demand.local_lengths.shapes)
    if _has_shifted(current, local, significance):
        return _shares(names, local, current)
    long = _counts(types, demand.long_lengths.shapes)
    if _has_shifted(current, long, significance):
        slow = _shares(names, long, current)
        if not _has_shifted(slow, local, significance):
            return slow
    return current


def estimate_kind_mix(current: Mix, demand: ModelDemand, significance: float) -> Mix:
    """The shares of request kinds to plan for, for a component model whose gateways report the kind
    of each request. `current` if the local window proves no shift.

    significance: probability per call that chance is mistaken for a shift.
    """
    counts = {name: demand.kinds.get(name, 0) for name, _ in current}
    if not _has_shifted(current, counts, significance):
        return current
    return _shares([name for name, _ in current], counts, current)


def total_variation(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Total variation distance between the mixes `one` and `other`: the share of requests that
    would have to change kind."""
    names = {**one, **other}  # fixed order: a sum of floats depends on the order
    return sum(abs(one.get(name, 0.0) - other.get(name, 0.0)) for name in names) / 2.0


def _counts(types: Sequence[WorkloadType], shapes: Mapping[int, int]) -> dict[str, int]:
    kinds = [(kind.lengths.input_tokens, kind.lengths.output_tokens) for kind in types]
    found = {kind.name: 0 for kind in types}
    for shape, count in shapes.items():
        found[types[nearest_kind(kinds, *shape_lengths(shape))].name] += count
    return found


def _has_shifted(planned: Mix, counts: Mapping[str, int], significance: float) -> bool:
    total = sum(counts.values())
    if not total:
        return False
    shares = {name: count / total for name, count in counts.items()}
    if total_variation(shares, dict(planned)) < MIN_SHIFT:
        return False
    # Testing increases is enough: if one type is less frequent, another one is more frequent.
    each = significance / max(1, len(planned))
    return any(
        poisson_tail(counts.get(name, 0), share * total) <= each
        for name, share in planned
        if counts.get(name, 0) > share * total
    )


def _shares(names: Sequence[str], counts: Mapping[str, int], prior: Mix) -> Mix:
    """Measured shares, shrunk towards the planned shares, so that no type gets the share 0."""
    before = dict(prior)
    total = sum(counts.values()) + _PRIOR_REQUESTS
    return tuple(
        (
            name,
            (counts[name] + _PRIOR_REQUESTS * before.get(name, 0.0)) / total,
        )
        for name in names
    )
