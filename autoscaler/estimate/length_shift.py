"""Detect a shift of request lengths: prompts become longer and answers shorter, or the reverse.

If prompts and answers change in the same direction, the present roles only need more or less
capacity. A shift needs other roles. A mean over times before and after the shift would describe no
real request.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.estimate.overdispersion import dispersion
from autoscaler.estimate.window_stats import TokenSums, WindowLengths

MIN_REQUESTS = 100
"""Requests below which a mean length is not compared."""
_SIGMAS = 3.0
"""Standard errors by which means must differ, because the comparison runs every few seconds."""
_MIN_RATIO = 1.4
"""Smallest ratio of means that counts as a change. Roles need not follow a smaller drift."""


@dataclass(frozen=True, slots=True)
class _Cvs:
    """Coefficients of variation of prompts and answers."""

    inputs: float
    outputs: float


def lengths_since_shift(
    demand: ModelDemand, input_cv: float, output_cv: float
) -> WindowLengths | None:
    """Lengths of the requests after the shift; None without a shift.

    Several windows are examined: the recent spans and the local window. The result is the longest
    window whose older part does not differ significantly from its last seconds. input_cv,
    output_cv: coefficients of variation of lengths, for the significance test.
    """
    # D: only one of D similar requests in a burst is independent evidence.
    clumps = math.sqrt(dispersion(demand.blocks).confirmed)
    cvs = _Cvs(input_cv * clumps, output_cv * clumps)
    local, long = _token_sums(demand.local_lengths), _token_sums(demand.long_lengths)
    windows = (*demand.recent_tokens, local)
    rests = [_minus(window, windows[0]) for window in windows]
    shifted = any(_is_shift(_changes(windows[0], rest, cvs)) for rest in rests)
    if not shifted and not _is_shift(_changes(local, _minus(long, local), cvs)):
        return None
    at = len(windows) - 1
    while at and any(_changes(windows[0], rests[at], cvs)):
        at -= 1
    return _lengths(windows[at]) if at + 1 < len(windows) else demand.local_lengths


def _lengths(seen: TokenSums) -> WindowLengths:
    """Mean lengths from token sums, without sketches. A window with a shift has at least
    MIN_REQUESTS requests, so no division by 0 is possible."""
    return WindowLengths(
        mean_input_tokens=seen.input_tokens / seen.arrivals,
        mean_output_tokens=seen.output_tokens / seen.completions,
        arrivals=seen.arrivals,
        completions=seen.completions,
    )


def _token_sums(seen: WindowLengths) -> TokenSums:
    return TokenSums(
        seen.arrivals,
        round((seen.mean_input_tokens or 0.0) * seen.arrivals),
        seen.completions,
        round((seen.mean_output_tokens or 0.0) * seen.completions),
    )


def _minus(window: TokenSums, part: TokenSums) -> TokenSums:
    return TokenSums(
        max(0, window.arrivals - part.arrivals),
        max(0, window.input_tokens - part.input_tokens),
        max(0, window.completions - part.completions),
        max(0, window.output_tokens - part.output_tokens),
    )


def _is_shift(changes: tuple[int, int]) -> bool:
    """Whether prompts became longer and answers shorter, or the reverse."""
    return changes[0] * changes[1] < 0


def _changes(now: TokenSums, before: TokenSums, cvs: _Cvs) -> tuple[int, int]:
    """Significant changes of prompts and of answers: 1 longer, -1 shorter, 0 no significant
    change."""
    least = min(now.arrivals, now.completions, before.arrivals, before.completions)
    if least < MIN_REQUESTS:
        return 0, 0
    return (
        _change(now.input_tokens, now.arrivals, before.input_tokens, before.arrivals, cvs.inputs),
        _change(
            now.output_tokens, now.completions, before.output_tokens, before.completions,
            cvs.outputs,
        ),
    )  # fmt: skip


def _change(tokens: int, requests: int, tokens_before: int, requests_before: int, cv: float) -> int:
    now, before = tokens / requests, tokens_before / requests_before
    error = cv * math.sqrt(now * now / requests + before * before / requests_before)
    if max(now, before) < _MIN_RATIO * min(now, before) or abs(now - before) <= _SIGMAS * error:
        return 0
    return 1 if now > before else -1
