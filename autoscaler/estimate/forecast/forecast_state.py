"""What is expected of one model, as remembered from tick to tick.

Owns when a forecast is made and which way of looking ahead makes it. Once a minute the chosen
strategy is asked; once in half an hour the choice is made anew, by the error on held-back minutes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from autoscaler.domain.cluster import Policy
from autoscaler.estimate.arrival_counts import BLOCK_S, Blocks
from autoscaler.estimate.forecast.forecaster import NoForecast
from autoscaler.estimate.forecast.forecasters import LAST, of_name, strategies
from autoscaler.estimate.forecast.history import MINUTE_S, History, Rates, absorbed
from autoscaler.estimate.forecast.selection import AUTO, least, scores
from autoscaler.estimate.forecast.trend import rising

NONE = "none"
_BLOCK_MS = BLOCK_S * 1000
_CHOOSE_EVERY = 30
_LOOK_AGAIN = 5  # while too little is known to choose
_MOST = 2.0  # times the highest minute known: a trend is not continued into the sky


@dataclass(frozen=True, slots=True)
class Expected:
    """What was forecast. sure_req_per_s: at least so much at `at_ms`, when an instance started now
    would be ready; in one of twenty held-back minutes less came. error_req_per_s: mean error of
    this strategy on them, last_error_req_per_s: of the last value. strategy: its name."""

    sure_req_per_s: float
    at_ms: int
    error_req_per_s: float
    last_error_req_per_s: float
    strategy: str


@dataclass(frozen=True, slots=True)
class Climb:
    """What a steady rise surely comes to at `at_ms`, when an instance started now would be ready.
    req_per_s: the present rate; per_min: requests/s that it gains in a minute; lasted_s: so long.
    """

    sure_req_per_s: float
    at_ms: int
    req_per_s: float
    per_min: float
    lasted_s: int


@dataclass(frozen=True, slots=True)
class Outlook:
    """history: of the model. family: that `strategy` was chosen for. strategy: its name, "" for
    none; its errors as in Expected and Score. chosen_minute: since the epoch, when it was.
    expected, climb: None where nothing is."""

    history: History = field(default_factory=History)
    family: str = NONE
    strategy: str = ""
    error_req_per_s: float = 0.0
    over_req_per_s: float = 0.0
    last_error_req_per_s: float = 0.0
    chosen_minute: int = 0
    expected: Expected | None = None
    climb: Climb | None = None


def looked_ahead(
    outlook: Outlook,
    blocks: Blocks,
    policy: Policy,
    start_s: float,
    turn: int,
    now_ms: int,
) -> Outlook:
    """The outlook brought up to date: a steady rise every ten seconds, the rest when another
    minute is over.

    start_s: how long an instance takes to start, 0 = not known. turn: of the model, so that not
    all of them choose in the same minute.
    """
    family = policy.forecast
    if family == NONE:
        return outlook if outlook == Outlook() else Outlook()
    climb = _climb(blocks, policy.significance, start_s, now_ms) if family == AUTO else None
    if climb != outlook.climb:
        outlook = replace(outlook, climb=climb)
    history = absorbed(outlook.history, blocks, now_ms)
    if history is outlook.history and family == outlook.family:
        return outlook
    outlook = replace(outlook, history=history, expected=None)
    if start_s <= 0.0:
        return outlook
    ready_ms = now_ms + round(start_s * 1000)
    steps = max(1, ready_ms // 1000 // MINUTE_S - history.end_minute + 1)
    since = history.end_minute - outlook.chosen_minute
    again = since >= _CHOOSE_EVERY and (history.end_minute + turn) % _CHOOSE_EVERY == 0
    unknown = not outlook.last_error_req_per_s and since >= _LOOK_AGAIN
    if family != outlook.family or again or unknown or since >= 2 * _CHOOSE_EVERY:
        outlook = _chosen(outlook, history.rates(), steps, family)
    return replace(outlook, expected=_expected(outlook, steps, ready_ms))


def _climb(blocks: Blocks, significance: float, start_s: float, now_ms: int) -> Climb | None:
    found = rising(blocks, significance) if start_s > 0.0 else None
    if found is None:
        return None
    blocks_end_ms = now_ms // _BLOCK_MS * _BLOCK_MS
    return Climb(
        found.sure_req_per_s(start_s),
        blocks_end_ms + round(start_s * 1000),
        found.req_per_s,
        60.0 * found.slope,
        found.lasted_s,
    )


def _chosen(outlook: Outlook, rates: Rates, steps: int, family: str) -> Outlook:
    found = scores(rates, steps, strategies())
    best = least(found, family)
    return replace(
        outlook,
        family=family,
        strategy=best.strategy.name if best else "",
        error_req_per_s=best.mean_error if best else 0.0,
        over_req_per_s=best.over if best else 0.0,
        last_error_req_per_s=found[0].mean_error if found else 0.0,
        chosen_minute=outlook.history.end_minute,
    )


def _expected(outlook: Outlook, steps: int, ready_ms: int) -> Expected | None:
    strategy = of_name(outlook.strategy)
    if strategy is None:
        return None
    rates = outlook.history.rates()
    if isinstance(LAST.predict(rates, steps), NoForecast):
        return None
    said = strategy.predict(rates, steps)
    if isinstance(said, NoForecast) or not math.isfinite(said):
        return None
    highest = float(np.nanmax(rates))
    return Expected(
        max(0.0, min(said, _MOST * highest) - outlook.over_req_per_s),
        ready_ms,
        outlook.error_req_per_s,
        outlook.last_error_req_per_s,
        outlook.strategy,
    )
