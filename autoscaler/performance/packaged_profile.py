"""The profile that ships with the package, and a plain profile of the default factors."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources

from autoscaler.performance.efficiency import DEFAULT_EFFICIENCY
from autoscaler.performance.profile import Profile
from autoscaler.performance.profile_codec import decode, make_profile

_PACKAGED = "profile_v1.json"


@lru_cache(maxsize=1)
def default_profile() -> Profile:
    """The profile that ships with the package."""
    path = resources.files("autoscaler").joinpath("data", _PACKAGED)
    if not path.is_file():
        return plain_profile()
    return decode(path.read_text(encoding="utf-8"))


def plain_profile() -> Profile:
    """A profile with the default factors, without any fit."""
    return make_profile(DEFAULT_EFFICIENCY, DEFAULT_EFFICIENCY)
