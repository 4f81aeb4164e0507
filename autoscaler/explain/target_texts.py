"""Sentences for the planned demand."""

from __future__ import annotations

from collections.abc import Callable

from autoscaler.domain.reason import Reason
from autoscaler.explain.quantity_texts import duration, lasting, over, rate, under
from topics.reason_codes import ReasonCode as Code

Text = Callable[[Reason], str]


def _declared(reason: Reason) -> str:
    return f"declared workload of {rate(reason.quantities[0])} req/s"


def _inherited(_reason: Reason) -> str:
    return "capacity taken over at the start"


def _wake(_reason: Reason) -> str:
    return "its first requests arrived"


def _surge(reason: Reason) -> str:
    size, *capacity = reason.quantities
    if not capacity:  # no capacity given: the increase fits within the planned load
        return f"demand of {rate(size)} req/s"
    utilization, raw, instances = capacity
    if raw > 0.0:
        return over(size, utilization, raw)
    none = (
        "the running instances have no known capacity yet"
        if instances
        else "no instance is running"
    )
    return f"demand of {rate(size)} req/s, and {none}"


def _burst(reason: Reason) -> str:
    high, mean = reason.quantities
    return f"bursts of {rate(high)} req/s around a mean of {rate(mean)}"


def _backlog(reason: Reason) -> str:
    in_flight, recent, expected, capacity = reason.quantities
    return (
        f"{in_flight:.0f} requests in flight, but {rate(recent)} req/s explain only "
        f"{expected:.0f}; capacity {rate(capacity)}"
    )


def _forecast(reason: Reason) -> str:
    expected, in_s, error, last_error = reason.quantities
    return (
        f"{rate(expected)} req/s expected in {duration(in_s)} by {reason.names[0]} "
        f"(mean error {rate(error)}, last value {rate(last_error)})"
    )


def _rising(reason: Reason) -> str:
    expected, in_s, lasted_s, now, per_min = reason.quantities
    return (
        f"{rate(expected)} req/s expected in {duration(in_s)} because the rate has been rising for "
        f"{lasting(lasted_s)} ({rate(now)} now, {per_min:+.2f} a minute)"
    )


def _lower_demand(reason: Reason) -> str:
    return under(*reason.quantities)


def _idle(reason: Reason) -> str:
    return f"no requests for {duration(reason.quantities[0])}"


def _overestimated(reason: Reason) -> str:
    share, requests, load, planned = reason.quantities
    return (
        f"only {share:.0%} of {requests:.0f} requests met the SLO "
        f"(load {rate(load)} of {rate(planned)} req/s)"
    )


def _derated(reason: Reason) -> str:
    return f"capacity derated to {reason.quantities[0]:.0%} because SLOs were missed"


def _with_derating(own: Text) -> Callable[[Reason, Text], str]:
    """A text function that returns the sentence of `own`, followed by the reasons for a lowered
    capacity, if there are any."""
    return lambda reason, text: "; ".join([own(reason), *map(text, reason.because)])


TARGET_TEXTS = {
    code: _with_derating(own)
    for code, own in {
        Code.DECLARED: _declared,
        Code.INHERITED: _inherited,
        Code.WAKE: _wake,
        Code.SURGE: _surge,
        Code.BURST: _burst,
        Code.BACKLOG: _backlog,
        Code.FORECAST: _forecast,
        Code.RISING: _rising,
        Code.LOWER_DEMAND: _lower_demand,
        Code.IDLE: _idle,
        Code.OVERESTIMATED: _overestimated,
        Code.DERATED: _derated,
    }.items()
}
