"""Measured time per output token, compared with its prediction for the requests in decoding.

Slow and fast engines show in every token, so a few requests prove them long before requests miss
their SLO. The prediction takes the number of decoding requests into account, so a high load does
not look like slow engines.
"""

from __future__ import annotations

from dataclasses import replace

from autoscaler.domain.token_times import TokenTimes, pooled
from autoscaler.estimate.windows import Stats
from autoscaler.state.model_state import ModelState
from autoscaler.state.model_view import ModelView

SLOW = 1.2
"""Measured / predicted time per token from which engines count as slow. Smaller differences are
usual for the performance model."""
_FAST = 1.0 / SLOW
"""Measured / predicted time per token up to which engines count as fast."""
_MATTERS = 0.1
"""Relative change of a slowdown that changes the capacity."""


def update_slowdown(view: ModelView) -> ModelState:
    """The model's state with the slowdown that lasted for a local window, below 1 if engines are
    fast; 1 if they are as predicted. Without evidence it stays."""
    state, known = view.state, view.state.capacity
    seen = token_time_ratio(view)
    if seen is None:
        return state
    is_fast = seen <= _FAST or (known.slowdown < 1.0 and seen <= 1.0 - _MATTERS)
    if seen < SLOW and not is_fast:
        if known.slowdown == 1.0 and not known.slow_since_ms:
            return state
        return replace(state, capacity=replace(known, slowdown=1.0, slow_since_ms=0))
    since_ms = known.slow_since_ms or view.now_ms
    lasts = view.now_ms - since_ms >= view.policy.local_window_s * 1000
    differs = abs(seen - known.slowdown) > _MATTERS * known.slowdown
    slowdown = seen if lasts and differs else known.slowdown
    if (since_ms, slowdown) == (known.slow_since_ms, known.slowdown):
        return state
    return replace(state, capacity=replace(known, slowdown=slowdown, slow_since_ms=since_ms))


def capacity_share(view: ModelView) -> float:
    """The capacity of the present instances as a multiple of the prediction, at the model's
    slowdown.

    If all steps take s times as long, a load of 1/s of the prediction keeps the same requests in
    decoding, and each token takes s times as long. If that is over the limit, fewer requests may
    decode.
    """
    slowdown, times = view.state.capacity.slowdown, _predicted(view)
    if slowdown == 1.0 or times is None:
        return 1.0
    ready = view.serving.ready
    rate = sum(combo.req_per_s for combo in ready)
    late_ms = sum(combo.req_per_s * combo.tpot_ms for combo in ready) / rate
    limit_ms = view.service.slo.tpot_ms * times.tpot_ms / late_ms  # of the median
    allowed_ms = min(times.tpot_ms, limit_ms / slowdown)
    held = times.batch_at(allowed_ms) / times.batch
    return held * times.tpot_ms / (slowdown * allowed_ms)


def token_time_ratio(view: ModelView, least: float = 1.0) -> float | None:
    """Measured / predicted time per token in the local window; None without evidence.

    All planned instances must have served for the whole window, and at least `least` times as many
    requests must decode as at half of the planned load. By Little's law, the requests in decoding
    are the rate of tokens times the time per token.
    """
    seen, times = view.demand.local, _predicted(view)
    settled_ms, window_ms = view.state.capacity.settled_ms, view.policy.local_window_s * 1000
    if not view.serving.nothing_starting or not settled_ms or times is None:
        return None
    if view.now_ms - settled_ms < window_ms or not isinstance(seen, Stats):
        return None
    if seen.tpot_p50_ms is None or seen.mean_output_tokens is None:
        return None
    tokens_per_s = seen.completions * seen.mean_output_tokens / max(seen.covered_s, 1)
    decoding = tokens_per_s * seen.tpot_p50_ms / 1000.0
    if seen.completions < view.policy.min_samples or decoding < least * times.half_batch:
        return None
    return seen.tpot_p50_ms / times.tpot_ms_at(decoding)


def _predicted(view: ModelView) -> TokenTimes | None:
    """The token times of all ready combos together; None if one of them has none, or misses the SLO
    at any load."""
    ready = view.serving.ready
    if not all(combo.meets_slo for combo in ready):
        return None
    parts = [(combo.req_per_s, combo.token_times) for combo in ready]
    known = [(rate, times) for rate, times in parts if times is not None]
    return pooled(known) if len(known) == len(parts) else None
