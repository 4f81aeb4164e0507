"""Sentences for the conditions of a model, and what a person does about each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autoscaler.domain.reason import Reason
from autoscaler.explain.sentences import Sentence, Text, compose
from topics.reason_codes import ReasonCode as Code

_PROMISE = "SLO met for {0:.1%} of {1:.0f} requests in {2:lasting}, {3:.4g}% promised"


def _recommended(reason: Reason, _: Text) -> str:
    if not reason.quantities:
        return "recommended only"
    servers = reason.quantities[0]
    verb = "runs" if servers == 1 else "run"
    return f"recommended only; {servers:.0f} {verb} that Shoal did not start"


CONDITION_TEXTS: Mapping[Code, Sentence] = {
    Code.NOTHING_READY: "no instance is ready, and {0:rate} req/s arrive",
    Code.NOT_SERVED: "none of {0:.0f} requests was served in {1:lasting}",
    Code.PROMISE_BROKEN: _PROMISE,
    Code.PROMISE_WAS_BROKEN: f"{_PROMISE}; kept now",
    Code.CAPACITY_SHORT: "short: {0:rate} req/s unserved",
    Code.FLOOR_SHORT: "short of its floor: {0:.0f} of {1:.0f}",
    Code.OVER_SPOT_LIMIT: "{0:.0%} of its capacity is on spot, {1:.0%} allowed",
    Code.PROPOSAL_WAITS: "proposal #{0:.0f} waits for approval",
    Code.SERVERS_UNCOUNTED: (
        "recommended only; nothing yet, because its servers are not counted (shoal doctor)"
    ),
    Code.RECOMMENDED_ONLY: _recommended,
    Code.STARTING: "{0:.0f} starting",
    Code.LEAVING: "{0:.0f} leaving",
    Code.AT_ZERO: "at zero",
    Code.STEADY: "steady",
}

_HELP = "shoal explain {subject} names what would help"
_REMEDIES: Mapping[Code, Sentence] = {
    Code.NOTHING_READY: "shoal explain {subject} names why no instance is ready",
    Code.NOT_SERVED: "see the logs of its gateway and engines",
    Code.PROMISE_BROKEN: "shoal explain {subject} shows its load and what limits it",
    Code.CAPACITY_SHORT: _HELP,
    Code.FLOOR_SHORT: _HELP,
    Code.NO_TELEMETRY: (
        "send its requests through the gateway, or declare `demand` in shoal.yaml; then shoal "
        "doctor --config FILE shows the answer"
    ),
    Code.PROPOSAL_WAITS: "shoal approve {0:.0f}, or shoal reject {0:.0f} --why ...",
}


def remedy(conditions: Iterable[Reason]) -> str:
    """The remedy of `conditions`, "" if there is none."""
    made = (compose(_REMEDIES[one.code], one, _none) for one in conditions if one.code in _REMEDIES)
    return "; ".join(dict.fromkeys(made))


def _none(_: Reason) -> str:
    return ""
