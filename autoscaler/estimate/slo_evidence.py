"""Evidence of a window about the promise of an SLO: that a share of the requests meets it."""

from __future__ import annotations

from autoscaler.estimate.poisson_tests import is_significant
from autoscaler.estimate.window_stats import Stats

_CHANCE = 0.01
"""A promise counts as broken if a kept promise gives so many misses with at most this
probability."""
_ENOUGH = 3.0
"""A window without too many misses shows that the promise is kept if the promise allows at least so
many misses among its requests."""


def ended(window: Stats) -> int:
    """Number of requests that ended in the window, with or without an answer."""
    return window.completions + window.failures + window.refused


def is_broken(window: Stats, percentile: float) -> bool:
    """Whether more requests miss the SLO than a promise for the share `percentile` explains."""
    missed = ended(window) - window.attained
    allowed = ended(window) * (1.0 - percentile)
    return missed > 0 and is_significant(missed, allowed, _CHANCE)


def is_kept(window: Stats, percentile: float) -> bool:
    """Whether the window has enough requests to show that the promise is kept."""
    is_enough = ended(window) * (1.0 - percentile) >= _ENOUGH
    return is_enough and not is_broken(window, percentile)
