"""Estimate the share of prompt tokens that prefix caches hold, to plan with.

Too high a share means too little capacity, so it falls at once and rises slowly. It rises to a
share that several minutes prove, if the local window reaches it too and the last half minute does
not contradict it.
It falls as soon as the last seconds or the last half minute are clearly lower. Shares are multiples
of STEP, so that noise evaluates no combo again.
"""

from __future__ import annotations

import math

from autoscaler.domain.workload import MOST_PREFIX_HIT, WEIGHTS, Lengths
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


def estimate_prefix_hit(lengths: Lengths, demand: ModelDemand) -> float:
    """The share to plan with; that of `lengths`, the present one, without evidence for a change."""
    hits, current = demand.prefix_hits, lengths.prefix_hit
    prompt_tokens = _prompt_tokens(lengths, demand)
    if not hits.local_queried or not prompt_tokens:
        return current
    fallen = fallen_prefix_hit(lengths, demand)
    if fallen < current:
        return fallen
    local = hits.local_hit / hits.local_queried
    # A share that fell at once must not rise while older minutes of the windows still have hits.
    proven = min(hits.proven_share, local, *(bound for bound, _ in _recent(hits, prompt_tokens)))
    if hits.minutes < MIN_MINUTES:
        # Too little for a higher share, but enough requests may show that the share is lower.
        enough = hits.local_queried >= _MIN_REQUESTS * prompt_tokens
        return min(current, _on_grid(local)) if enough else current
    found = _on_grid(proven)
    return found if found < current or found >= current + 0.5 * STEP else current


def fallen_prefix_hit(lengths: Lengths, demand: ModelDemand) -> float:
    """The share to plan with if the last seconds or the last half minute are clearly lower than
    the present one, that of `lengths`; else the present one. A share that falls clearly within the
    half minute is planned as it will be in another half minute, because a start takes longer."""
    hits, current = demand.prefix_hits, lengths.prefix_hit
    if not current or not hits.minutes:  # caches start cold
        return current
    if not (prompt_tokens := _prompt_tokens(lengths, demand)):
        return current
    clear = [share for bound, share in _recent(hits, prompt_tokens) if bound < current]
    return max(0.0, _on_grid(min(clear))) if clear else current


def _prompt_tokens(lengths: Lengths, demand: ModelDemand) -> float:
    """Tokens that count as one request: the mean prompt length, weighted by tokens, because a few
    long prompts have most of the tokens. 0.0 without data."""
    mean = demand.local_lengths.mean_input_tokens or demand.long_lengths.mean_input_tokens or 0.0
    if not lengths.inputs:
        return mean
    square = sum(w * x * x for w, x in zip(WEIGHTS, lengths.inputs, strict=True))
    return mean * square / lengths.input_tokens**2


def _recent(hits: PrefixHits, prompt_tokens: float) -> list[tuple[float, float]]:
    """(upper bound, expected share) of each recent span with enough requests."""
    found = []
    for number, (queried, hit) in enumerate(hits.recent):
        requests = queried / prompt_tokens
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
