"""The profile to plan with: the packaged profile with a user's own measurements.

Imports no heavy modules, because simulated engines import it at their start.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from autoscaler.domain.measurement import Measurement
from autoscaler.domain.validation import finite, whole
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.performance.profile import Profile, architecture_key

if TYPE_CHECKING:
    from autoscaler.domain.cluster import Cluster
    from autoscaler.performance.benchmark_points import MeasuredPoint


def with_measurements(profile: Profile, measurements: Sequence[Measurement]) -> Profile:
    """`profile` with `measurements`. A measurement replaces earlier ones of the same model, GPU and
    number of GPUs."""
    known = (*profile.measurements, *measurements)
    by_key = {(one.architecture, one.weight_dtype, one.gpu, one.tp): one for one in known}
    text = f"{profile.content_hash} {sorted(map(repr, by_key.values()))}"
    content_hash = hashlib.sha256(text.encode()).hexdigest()
    return replace(profile, measurements=tuple(by_key.values()), content_hash=content_hash)


def cluster_profile(cluster: Cluster) -> Profile:
    """The packaged profile with the measurements of `cluster`."""
    return packaged_with_measurements(cluster.measurements)


@lru_cache(maxsize=16)
def packaged_with_measurements(measurements: tuple[Measurement, ...]) -> Profile:
    """The packaged profile with `measurements`."""
    return with_measurements(default_profile(), measurements) if measurements else default_profile()


def without_measurements(profile: Profile, point: MeasuredPoint) -> Profile:
    """`profile` without the user's measurements of this point's model and GPU."""
    key = architecture_key(point.spec), point.gpu.name
    rest = tuple(m for m in profile.measurements if (m.architecture, m.gpu) != key)
    if len(rest) == len(profile.measurements):
        return profile
    return with_measurements(replace(profile, measurements=()), rest)


def check_measurement(measurement: Measurement) -> Measurement:
    """Return `measurement`. Raises InvalidValue, which names the field, if a field is out of
    range."""
    finite("measurement: prefill", measurement.prefill, 1e-4, 1e6)
    finite("measurement: decode", measurement.decode, 1e-4, 1e6)
    finite("measurement: error", measurement.error, 0.0, 1e3)
    if measurement.first_token_ms is not None:
        finite("measurement: first_token_ms", measurement.first_token_ms, 0.0, 1e5)
    whole("measurement: points", measurement.points, 1, 10**6)
    whole("measurement: tp", measurement.tp, 1, 1024)
    return measurement
