"""Whether requests turned: from long prompts and short answers to the other way round, or back.

Owns which part of the past is of the same requests as now. Requests that are only longer or only
shorter ask for more or less of the same; a turn asks for other roles, and a mean over both sides of
it describes requests that nobody sends.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.estimate.overdispersion import dispersion
from autoscaler.estimate.window_stats import LengthsSeen, TokenSums

LEAST_REQUESTS = 100
_SIGMAS = 3.0
_LEAST = 1.4
"""Less than this, up on one side and down on the other, is drift: roles need not follow it."""


@dataclass(frozen=True, slots=True)
class _Cvs:
    """Coefficients of variation of prompts and answers."""

    inputs: float
    outputs: float


def since_turn(demand: ModelDemand, input_cv: float, output_cv: float) -> LengthsSeen | None:
    """How long requests were since they turned, of the last minutes; None where they did not turn.

    The longest of the fresh spans and the local window of which the rest is not surely of other
    requests than its last seconds. input_cv, output_cv: of lengths, by which chance is judged.
    """
    # Of requests that come in clumps of D alike, only one in D says something new.
    clumps = math.sqrt(dispersion(demand.blocks).claimed)
    cvs = _Cvs(input_cv * clumps, output_cv * clumps)
    local, long = _tokens(demand.local_lengths), _tokens(demand.long_lengths)
    windows = (*demand.fresh, local)
    rests = [_without(window, windows[0]) for window in windows]
    turned = any(_is_turn(_changes(windows[0], rest, cvs)) for rest in rests)
    if not turned and not _is_turn(_changes(local, _without(long, local), cvs)):
        return None
    at = len(windows) - 1
    while at and any(_changes(windows[0], rests[at], cvs)):
        at -= 1
    return _lengths(windows[at]) if at + 1 < len(windows) else demand.local_lengths


def _lengths(seen: TokenSums) -> LengthsSeen:
    """Without sketches. Of fewer than LEAST_REQUESTS there are no turns."""
    return LengthsSeen(
        mean_input_tokens=seen.input_tokens / seen.arrivals,
        mean_output_tokens=seen.output_tokens / seen.completions,
        arrivals=seen.arrivals,
        completions=seen.completions,
    )


def _tokens(seen: LengthsSeen) -> TokenSums:
    return TokenSums(
        seen.arrivals,
        round((seen.mean_input_tokens or 0.0) * seen.arrivals),
        seen.completions,
        round((seen.mean_output_tokens or 0.0) * seen.completions),
    )


def _without(window: TokenSums, part: TokenSums) -> TokenSums:
    return TokenSums(
        max(0, window.arrivals - part.arrivals),
        max(0, window.input_tokens - part.input_tokens),
        max(0, window.completions - part.completions),
        max(0, window.output_tokens - part.output_tokens),
    )


def _is_turn(changes: tuple[int, int]) -> bool:
    """Whether one side is surely longer than before, and the other one surely shorter."""
    return changes[0] * changes[1] < 0


def _changes(now: TokenSums, before: TokenSums, cvs: _Cvs) -> tuple[int, int]:
    """Of prompts and of answers: 1 where they are surely longer now, -1 shorter, 0 neither."""
    least = min(now.arrivals, now.completions, before.arrivals, before.completions)
    if least < LEAST_REQUESTS:
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
    if max(now, before) < _LEAST * min(now, before) or abs(now - before) <= _SIGMAS * error:
        return 0
    return 1 if now > before else -1
