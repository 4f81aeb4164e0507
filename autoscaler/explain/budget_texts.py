"""Sentences for the reasons of budget mode, and for mixes of request types."""

from __future__ import annotations

from collections.abc import Mapping

from autoscaler.domain.reason import Reason
from autoscaler.explain.sentences import Sentence, Text
from topics.reason_codes import ReasonCode as Code


def _divided_anew(reason: Reason, text: Text) -> str:
    return "; ".join(["traffic split updated", *map(text, reason.because)])


BUDGET_TEXTS: Mapping[Code, Sentence] = {
    Code.TYPE_MIX: "{subject}/{names[0]} is {0:.0%} of the requests (planned for {1:.0%})",
    Code.MODEL_MIX: "{subject} is {0:.0%} of all requests (planned for {1:.0%})",
    Code.DIVIDED_ANEW: _divided_anew,
    Code.SPOT_SHARE: "share on spot",
    Code.TYPE_NOT_SERVED: "no GPU serves {names[0]} within the SLO",
    Code.BUDGET_TOO_SMALL: "the budget and the available nodes do not suffice for an instance",
    Code.NO_BUDGET_OBJECTIVE: (
        "policy.objective is cost, so plans do not maximise work within a budget"
    ),
    Code.BUDGET_WITHOUT_PLAN: (
        "{0:.2f} USD/h and the available nodes allow no instance that meets its SLO"
    ),
}
