"""Limits of the values in a ledger: a damaged or forged entry must not disturb later ticks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from autoscaler.rollout.backoff import Backoff
from autoscaler.rollout.supply import Supply
from autoscaler.state.controller_state import FullPlans, Numbers
from autoscaler.state.model_state import ModelState
from autoscaler.state.quality_state import SplitState
from autoscaler.state.rollout_state import RolloutState
from topics.checks import (
    MAX_MS,
    MAX_RESTORED_COUNT,
    MOST_REQ_PER_S,
    MOST_USD_PER_H,
    InvalidValue,
    count,
    number,
)
from topics.checks import name as check_name

_MOST_DEPTH = 30
_MOST_ITEMS = 200_000
_MOST_INSTANCES = 10**6
_FURTHEST_MS = 30 * 86_400_000
"""A deadline is at most this far in the future."""
_MOST_GAIN = 100.0
"""Largest measured, predicted or highest capacity as a multiple of the planned one."""
_EPOCH_TIME = 10**11
"""Smaller whole numbers are no times since the epoch."""
_DEADLINES = (
    "until_ms",
    "retry_at_ms",
    "preemption_until_ms",
    "expires_ms",
    "accepted_until_ms",
)
_FORECASTS = ("forecast", "trend")


def check_tree(tree: Any) -> None:
    """Check the size of parsed JSON, and that its numbers are within the range of times."""
    items = 0
    waiting = [(tree, 0)]
    while waiting:
        value, depth = waiting.pop()
        items += 1
        if depth > _MOST_DEPTH or items > _MOST_ITEMS:
            raise InvalidValue("value", f"depth {depth}, {items} items", "a smaller part")
        if isinstance(value, dict):
            waiting += [(one, depth + 1) for one in value.values()]
        elif isinstance(value, list):
            waiting += [(one, depth + 1) for one in value]
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            number("value", value, -MAX_MS, MAX_MS)


def on_clock(tree: Any, ahead_ms: int, now_ms: int) -> Any:
    """`tree` with all times moved back by `ahead_ms`. Afterwards a past time is at most `now_ms`,
    and a deadline at most 30 days later."""

    def moved(name: str, value: Any, forecast: bool) -> Any:
        if isinstance(value, dict):
            ahead = forecast or name in _FORECASTS
            of_times = name.endswith("_ms")
            return {key: moved(name if of_times else key, one, ahead) for key, one in value.items()}
        if isinstance(value, list):
            return [moved(name, one, forecast) for one in value]
        if type(value) is not int or not name.endswith("_ms") or value < _EPOCH_TIME:
            return value
        latest_ms = now_ms + _FURTHEST_MS if forecast or name in _DEADLINES else now_ms
        return max(0, min(value - ahead_ms, latest_ms))

    return moved("", tree, False)


def check_model(state: ModelState) -> None:
    """Check the numbers of a model's state."""
    estimate, capacity, unmet = state.estimate, state.capacity, state.infeasibility
    rates = {
        "target.req_per_s": state.target.req_per_s,
        "target.need_req_per_s": state.target.needed_req_per_s,
        "infeasibility.attempted_req_per_s": unmet.attempted_req_per_s,
        "forecast.error_req_per_s": estimate.forecast.error_req_per_s,
        "forecast.overshoot_req_per_s": estimate.forecast.overshoot_req_per_s,
        "forecast.last_error_req_per_s": estimate.forecast.last_error_req_per_s,
    }
    if estimate.forecast.forecast is not None:
        made = estimate.forecast.forecast
        rates["forecast.lower_bound_req_per_s"] = made.lower_bound_req_per_s
        rates["forecast.error"] = made.error_req_per_s
        rates["forecast.last_error"] = made.last_error_req_per_s
    if estimate.forecast.trend is not None:
        rates["trend.lower_bound_req_per_s"] = estimate.forecast.trend.lower_bound_req_per_s
        rates["trend.req_per_s"] = estimate.forecast.trend.req_per_s
    for name, rate in rates.items():
        number(name, rate, 0.0, MOST_REQ_PER_S)
    for name in ("derate", "predicted", "highest", "speed"):
        number(f"capacity.{name}", getattr(capacity, name), 0.01, _MOST_GAIN)
    number("capacity.slowdown", capacity.slowdown, 1e-3, 1e6)
    number("estimate.arrival_cv", estimate.arrival_cv, 0.01, 100.0)
    number("estimate.burstiness.pairs", estimate.burstiness.pairs, 0.0, 1e6)
    number("estimate.burstiness.total", estimate.burstiness.total, 0.0, 1e12)
    for _, share in estimate.mix:
        number("estimate.mix", share, 0.0, 1.0)
    for moment in estimate.moments:
        count("estimate.moments", moment.in_flight)
        for seen in moment.groups.values():
            count("estimate.moments.groups", seen.accepted)
    split = state.target.traffic_split
    for _, _, part in split.fractions:
        number("target.traffic_split", part, 0.0, 1.0)
    counts = (*split.copies, *state.advisory.recommended, *(state.advisory.unmanaged or ()))
    for _, instances in counts:
        count("instances", instances, _MOST_INSTANCES)
    _check_rollout(state.rollout)
    proposal = state.advisory.proposal
    for version in proposal.versions if proposal is not None else ():
        count("proposal.number", version.number, MAX_RESTORED_COUNT)
        for _, change in (*version.change, *version.base, *version.named.starts):
            number("proposal.change", change, -_MOST_INSTANCES, _MOST_INSTANCES)
    for _, usd_per_h, instances in state.advisory.unasked:
        number("unasked", usd_per_h, -MOST_USD_PER_H, MOST_USD_PER_H)
        count("unasked", instances, _MOST_INSTANCES)


def _check_rollout(rollout: RolloutState) -> None:
    number("rollout.bridge_req_per_s", rollout.bridge_req_per_s, 0.0, MOST_REQ_PER_S)
    for name in ("waves", "failures"):
        count(f"rollout.{name}", getattr(rollout, name), MAX_RESTORED_COUNT)
    if rollout.base is not None:
        check_name("rollout.base.engine", rollout.base.engine)
    for name in ("speed", "applied"):
        number(f"rollout.{name}", getattr(rollout, name), 0.01, _MOST_GAIN)
    known = rollout.comparison
    if known is None:
        return
    for metric in known.metrics:
        for test in (metric.worse, metric.fit):
            count(f"rollout.comparison.{metric.name}", test.above)
            count(f"rollout.comparison.{metric.name}", test.below)
    for pair in (known.pair, known.errors, known.total):
        count("rollout.comparison.seconds", pair.seconds)
        for part in (pair.new, pair.old):
            for field in fields(part):
                count(f"rollout.comparison.{field.name}", getattr(part, field.name))
    ratios, total, squares = known.ratios
    count("rollout.comparison.ratios", ratios)
    number("rollout.comparison.ratios", total, -1e12, 1e12)
    number("rollout.comparison.ratios", squares, 0.0, 1e12)


def check_fleet(
    supply: Supply,
    full: FullPlans,
    numbers: Numbers,
    backoff: Mapping[str, Backoff],
    splits: Mapping[str, SplitState],
) -> None:
    """Check the numbers of the memory about the fleet."""
    for price in (*supply.prices.values(), *supply.aside.values()):
        number("supply.prices", price.usd_per_h, 0.0, MOST_USD_PER_H)
        number("supply.prices", price.stale_usd_per_h, 0.0, MOST_USD_PER_H)
    for offer in supply.offers.values():
        count("supply.offers", offer.nodes, _MOST_INSTANCES)
    number("full.gap", full.gap, -1.0, 1.0)
    for usd_per_h in full.last.usd_per_h.values():
        number("full.last.usd_per_h", usd_per_h, 0.0, MOST_USD_PER_H)
    for switchable in full.last.switchable.values():
        count("full.last.switchable", switchable, _MOST_INSTANCES)
    number("numbers.group", numbers.group, 1, MAX_RESTORED_COUNT)
    for name in ("request", "decision", "plan"):
        count(f"numbers.{name}", getattr(numbers, name), MAX_RESTORED_COUNT)
    for mark in backoff.values():
        number("observed.backoff.strikes", mark.strikes, 1, 1000)
    for split in splits.values():
        for cut in (*split.cuts, *split.target_cuts):
            count("splits.cuts", cut, 10_000)
        for _, rate in split.planned:
            number("splits.planned", rate, 0.0, MOST_REQ_PER_S)
