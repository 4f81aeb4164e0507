"""Estimate the share of prompt tokens that prefix caches hold, to plan with.

Too high a share means too little capacity, so it falls at once and rises slowly. It rises to a
share that nine tenths of the tokens of the long window reach, if the local window reaches it too
and the last half minute does not contradict it.
It falls as soon as the last seconds or the last half minute are clearly lower. Shares are multiples
of STEP, so that noise evaluates no combo again.
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
_SIGMAS = 2.5
"""Standard errors by which a span up to the last half minute must be lower."""
_MIN_REQUESTS = 10


def estimate_prefix_hit(current: float, demand: ModelDemand) -> float:
    """The share to plan with; `current`, the present one, without evidence for a change."""
    hits = demand.prefix_hits
    mean_tokens = demand.local_lengths.mean_input_tokens or demand.long_lengths.mean_input_tokens
    if not hits.local_queried or not mean_tokens:
        return current
    recent, share = _lowest_recent(hits, mean_tokens)
    if recent < current:
        return _on_grid(share)
    local = hits.local_hit / hits.local_queried
    # A share that fell at once must not rise while older minutes of the windows still have hits.
    proven = min(hits.low_share, local, recent)
    if hits.minutes < MIN_MINUTES:
        # Too little for a higher share, but enough requests may show that the share is lower.
        enough = hits.local_queried >= _MIN_REQUESTS * mean_tokens
        return min(current, _on_grid(local)) if enough else current
    found = _on_grid(proven)
    return found if found < current or found >= current + 0.5 * STEP else current


def _lowest_recent(hits: PrefixHits, mean_tokens: float) -> tuple[float, float]:
    """(upper bound, share) of the recent span with the lowest bound; (1, 1) for too few
    requests."""
    found = [(1.0, 1.0)]
    for queried, hit in hits.recent:
        requests = queried / mean_tokens
        if requests >= _MIN_REQUESTS:
            share = hit / queried
            found.append((share + _SIGMAS * _SPREAD / math.sqrt(requests), share))
    return min(found)


def _on_grid(share: float) -> float:
    steps = math.floor(share / STEP + 1e-9)
    return min(MOST_PREFIX_HIT, round(steps * STEP, 6))
