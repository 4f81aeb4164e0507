"""Which share of a model's requests is of which workload type, in steps that are no noise.

Owns when the shares that are planned for give way to measured ones. A shift counts once some type
came more often than its share explains by chance, and once it moves enough requests to matter.
Then the local window is believed; a slow drift, which it is too short to prove, is seen in the long
one, as long as the local one agrees with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autoscaler.domain.components import RequestType
from autoscaler.domain.workload import WorkloadType
from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.estimate.poisson_tests import poisson_tail
from topics.request_shapes import lengths_of, nearest

Mix = tuple[tuple[str, float], ...]
"""Share of each type, in the order declared; they sum to 1."""

MATTERS = 0.05
"""Requests of other types than planned, as a share of all (total variation), that matter."""

_PRIOR_REQUESTS = 20.0


def declared_mix(types: Sequence[WorkloadType | RequestType]) -> Mix:
    """The shares as declared."""
    return tuple((kind.name, kind.share) for kind in types)


def estimate_mix(
    current: Mix, types: Sequence[WorkloadType], demand: ModelDemand, significance: float
) -> Mix:
    """The shares to plan for, given those planned for now; `current` itself if nothing shifted.

    significance: probability of taking chance for a shift, per look.
    """
    names = [kind.name for kind in types]
    local = _counts(types, demand.local_lengths.shapes)
    if _shifted(current, local, significance):
        return _shares(names, local, current)
    long = _counts(types, demand.long_lengths.shapes)
    if _shifted(current, long, significance):
        slow = _shares(names, long, current)
        if not _shifted(slow, local, significance):
            return slow
    return current


def estimate_kinds(current: Mix, demand: ModelDemand, significance: float) -> Mix:
    """The same of a model of components, whose gateways know the kind of each request."""
    counts = {name: demand.kinds.get(name, 0) for name, _ in current}
    if not _shifted(current, counts, significance):
        return current
    return _shares([name for name, _ in current], counts, current)


def apart(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Total variation: the share of requests that are of other kinds in `one` than in `other`."""
    names = {**one, **other}  # in a fixed order, in which floats are added
    return sum(abs(one.get(name, 0.0) - other.get(name, 0.0)) for name in names) / 2.0


def _counts(types: Sequence[WorkloadType], shapes: Mapping[int, int]) -> dict[str, int]:
    kinds = [(kind.lengths.input_tokens, kind.lengths.output_tokens) for kind in types]
    found = {kind.name: 0 for kind in types}
    for shape, count in shapes.items():
        found[types[nearest(kinds, *lengths_of(shape))].name] += count
    return found


def _shifted(planned: Mix, counts: Mapping[str, int], significance: float) -> bool:
    total = sum(counts.values())
    if not total:
        return False
    shares = {name: count / total for name, count in counts.items()}
    if apart(shares, dict(planned)) < MATTERS:
        return False
    # Where some types come less often, another comes more often: one side says it all.
    each = significance / max(1, len(planned))
    return any(
        poisson_tail(counts.get(name, 0), share * total) <= each
        for name, share in planned
        if counts.get(name, 0) > share * total
    )


def _shares(names: Sequence[str], counts: Mapping[str, int], prior: Mix) -> Mix:
    """Measured shares, drawn a little to those planned for: no type is ruled out by a window."""
    before = dict(prior)
    total = sum(counts.values()) + _PRIOR_REQUESTS
    return tuple(
        (
            name,
            (counts[name] + _PRIOR_REQUESTS * before.get(name, 0.0)) / total,
        )
        for name in names
    )
