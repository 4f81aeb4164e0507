"""Requests that wait because capacity was too small: a reason to add, and how much.

Owns the bound on what a healthy fleet holds and what draining the rest takes. Knows nothing of
rates by chance: a queue beyond this bound is no noise.
"""

from __future__ import annotations

from collections.abc import Iterable

from autoscaler.domain.combo import Combo
from autoscaler.domain.workload import Lengths

_BATCHES = 2.0
_SPARE = 4.0


def holds(combo: Combo, lengths: Lengths) -> float:
    """Most requests that are in one such combo while it keeps up.

    At capacity it has L = req_per_s x (TTFT + TPOT x R_out) in it (Little's law). Twice that and
    a few more for small ones: beyond it they can only be waiting.
    """
    seconds = (combo.ttft_ms + combo.tpot_ms * lengths.output_tokens) / 1000.0
    return _BATCHES * combo.req_per_s * seconds + _SPARE


def waiting(in_flight: int, ready: Iterable[Combo], lengths: Lengths) -> float:
    """Requests in flight beyond what all `ready` combos hold; 0 while they keep up."""
    return max(0.0, in_flight - sum(holds(combo, lengths) for combo in ready))


def raw_needed_req_per_s(rate_req_per_s: float, waiting_requests: float, drain_s: float) -> float:
    """Raw capacity that serves `rate_req_per_s` and drains what waits within `drain_s`."""
    return rate_req_per_s + waiting_requests / drain_s
