"""Estimate the share of prompt tokens that prefix caches hold, to plan with.

Too high a share means too little capacity, so it falls at once and rises slowly. It rises to a
share that nine tenths of the tokens of the long window reach, if the local window reaches it too
and the last half minute does not contradict it.
It falls as soon as the last half minute is clearly lower. Shares are multiples of STEP, so that
noise evaluates no combo again.
"""

from __future__ import annotations

import math

from autoscaler.domain.workload import MOST_PREFIX_HIT
from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.estimate.window_stats import PrefixHits

STEP = 0.05
"""Distance of two shares that are planned with."""
MIN_MINUTES = 5
"""Minutes without which a higher share is not planned with: conversations of one minute resemble
each other."""
_SPREAD = 0.5
"""Largest standard deviation of a request's share, for requests that hit all or nothing."""
_SIGMAS = 2.0
"""Standard errors by which the last half minute must be lower."""
_MIN_REQUESTS = 10


def estimate_prefix_hit(current: float, demand: ModelDemand) -> float:
    """The share to plan with; `current`, the present one, without evidence for a change."""
    hits = demand.prefix_hits
    mean_tokens = demand.local_lengths.mean_input_tokens or demand.long_lengths.mean_input_tokens
    if not hits.local_queried or not mean_tokens:
        return current
    recent = _recent_bound(hits, mean_tokens)
    if recent is not None and recent < current:
        return _on_grid(hits.recent_hit / hits.recent_queried)
    local = hits.local_hit / hits.local_queried
    # A share that fell at once must not rise while older minutes of the windows still have hits.
    proven = min(hits.low_share, local, 1.0 if recent is None else recent)
    if hits.minutes < MIN_MINUTES:
        # Too little for a higher share, but enough requests may show that the share is lower.
        enough = hits.local_queried >= _MIN_REQUESTS * mean_tokens
        return min(current, _on_grid(local)) if enough else current
    found = _on_grid(proven)
    return found if found < current or found >= current + 0.5 * STEP else current


def _recent_bound(hits: PrefixHits, mean_tokens: float) -> float | None:
    """Upper bound of the share of the last half minute; None for too few requests."""
    requests = hits.recent_queried / mean_tokens
    if requests < _MIN_REQUESTS:
        return None
    return hits.recent_hit / hits.recent_queried + _SIGMAS * _SPREAD / math.sqrt(requests)


def _on_grid(share: float) -> float:
    steps = math.floor(share / STEP + 1e-9)
    return min(MOST_PREFIX_HIT, round(steps * STEP, 6))
