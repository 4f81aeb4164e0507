"""Sentences for the planned demand."""

from __future__ import annotations

from collections.abc import Mapping

from autoscaler.domain.reason import Reason
from autoscaler.explain.quantity_texts import over, rate
from autoscaler.explain.sentences import Sentence, Text, compose
from topics.reason_codes import ReasonCode as Code


def _surge(reason: Reason, _: Text) -> str:
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


def _with_derating(own: Sentence) -> Sentence:
    """The sentence `own`, followed by the reasons for a lowered capacity, if there are any."""
    return lambda reason, text: "; ".join([compose(own, reason, text), *map(text, reason.because)])


_SENTENCES: Mapping[Code, Sentence] = {
    Code.DECLARED: "declared workload of {0:rate} req/s",
    Code.WAKE: "its first requests arrived",
    Code.SURGE: _surge,
    Code.BURST: "bursts of {0:rate} req/s around a mean of {1:rate}",
    Code.BACKLOG: (
        "{0:.0f} requests in flight, but {1:rate} req/s explain only {2:.0f}; capacity {3:rate}"
    ),
    Code.FORECAST: (
        "{0:rate} req/s expected in {1:duration} by {names[0]} (mean error {2:rate}, last "
        "value {3:rate})"
    ),
    Code.RISING: (
        "{0:rate} req/s expected in {1:duration} because the rate has been rising for "
        "{2:lasting} ({3:rate} now, {4:+.2f} a minute)"
    ),
    Code.LOWER_DEMAND: (
        "demand at most {0:rate} req/s for {3:lasting}; target is {1:.0%} of capacity {2:rate}"
    ),
    Code.WORTH_ITS_RENT: (
        "demand returned to {0:rate} req/s so soon before that capacity for it is worth its rent; "
        "target is {1:.0%} of capacity {2:rate}"
    ),
    Code.IDLE: "no requests for {0:duration}",
    Code.OVERESTIMATED: (
        "only {0:.0%} of {1:.0f} requests met the SLO (load {2:rate} of {3:rate} req/s)"
    ),
    Code.SLOW_ENGINES: "output tokens of {subject} take {0:.2f} times as long as predicted",
    Code.DERATED: "capacity derated to {0:.0%} by measurements",
    Code.LEARNT_CAPACITY: "capacity raised to {0:.0%} of the plan by measurements",
}

TARGET_TEXTS = {code: _with_derating(own) for code, own in _SENTENCES.items()}
