"""Estimate the share of prompt tokens that prefix caches hold, to plan with.

Too high a share means too little capacity, so it falls at once and rises slowly. It rises to a
share that several minutes prove, if the local window reaches it too and the last half minute does
not contradict it.
It falls as soon as the last seconds or the last half minute are clearly lower. Shares are multiples
of STEP, so that noise evaluates no combo again.
"""

from __future__ import annotations

import math

from autoscaler.domain.workload import MOST_PREFIX_HIT
from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.estimate.window_stats import MIN_MINUTES, PrefixHits

STEP = 0.05
"""Distance of two shares that are planned with."""
_SPREAD = 0.5
"""Largest standard deviation of a request's share, for requests that hit all or nothing."""
_SIGMAS = 2.5
"""Standard errors by which a span up to the last half minute must be lower."""
_MIN_REQUESTS = 10
_AHEAD = 2.0
"""Half a minute ahead, in distances between the last seconds and the rest of the half minute."""


def estimate_prefix_hit(current: float, demand: ModelDemand) -> float:
    """The share to plan with; `current`, the present one, without evidence for a change."""
    hits, mean_tokens = demand.prefix_hits, _mean_input_tokens(demand)
    if not hits.local_queried or not mean_tokens:
        return current
    fallen = fallen_prefix_hit(current, demand)
    if fallen < current:
        return fallen
    local = hits.local_hit / hits.local_queried
    # A share that fell at once must not rise while older minutes of the windows still have hits.
    proven = min(hits.proven_share, local, *(bound for bound, _ in _recent(hits, mean_tokens)))
    if hits.minutes < MIN_MINUTES:
        # Too little for a higher share, but enough requests may show that the share is lower.
        enough = hits.local_queried >= _MIN_REQUESTS * mean_tokens
        return min(current, _on_grid(local)) if enough else current
    found = _on_grid(proven)
    return found if found < current or found >= current + 0.5 * STEP else current


def fallen_prefix_hit(current: float, demand: ModelDemand) -> float:
    """The share to plan with if the last seconds or the last half minute are clearly lower than
    `current`; else `current`. A share that falls clearly within the half minute is planned as it
    will be in another half minute, because a start takes longer."""
    hits, mean_tokens = demand.prefix_hits, _mean_input_tokens(demand)
    if not current or not mean_tokens or not hits.minutes:  # caches start cold
        return current
    clear = [share for bound, share in _recent(hits, mean_tokens) if bound < current]
    return max(0.0, _on_grid(min(clear))) if clear else current


def _mean_input_tokens(demand: ModelDemand) -> float:
    return demand.local_lengths.mean_input_tokens or demand.long_lengths.mean_input_tokens or 0.0


def _recent(hits: PrefixHits, mean_tokens: float) -> list[tuple[float, float]]:
    """(upper bound, expected share) of each recent span with enough requests."""
    found = []
    for number, (queried, hit) in enumerate(hits.recent):
        requests = queried / mean_tokens
        if requests < _MIN_REQUESTS:
            continue
        share = hit / queried
        bound = share + _SIGMAS * _SPREAD / math.sqrt(requests)
        for longer_queried, longer_hit in hits.recent[number + 1 :]:
            if longer_queried > queried:
                before = (longer_hit - hit) / (longer_queried - queried)
                if bound < before:
                    share -= _AHEAD * (before - share)
        found.append((bound, share))
    return found


def _on_grid(share: float) -> float:
    steps = math.floor(share / STEP + 1e-9)
    return min(MOST_PREFIX_HIT, round(steps * STEP, 6))
