"""Sentences for the reasons of budget mode, and for mixes of request types."""

from __future__ import annotations

from collections.abc import Callable

from autoscaler.domain.reason import Reason
from topics.reason_codes import ReasonCode as Code

Text = Callable[[Reason], str]


def _type_mix(reason: Reason, _: Text) -> str:
    share, was = reason.quantities
    name = f"{reason.subject}/{reason.names[0]}"
    return f"{name} is {share:.0%} of the requests (planned for {was:.0%})"


def _model_mix(reason: Reason, _: Text) -> str:
    share, was = reason.quantities
    return f"{reason.subject} is {share:.0%} of all requests (planned for {was:.0%})"


def _divided_anew(reason: Reason, text: Text) -> str:
    return "; ".join(["traffic split updated", *map(text, reason.because)])


def _spot_share(_reason: Reason, _: Text) -> str:
    return "share on spot"


def _type_not_served(reason: Reason, _: Text) -> str:
    return f"no GPU serves {reason.names[0]} within the SLO"


def _budget_too_small(_reason: Reason, _: Text) -> str:
    return "the budget and the available nodes do not suffice for an instance"


def _no_budget_objective(_reason: Reason, _: Text) -> str:
    return "policy.objective is cost, so plans do not maximise work within a budget"


def _budget_without_plan(reason: Reason, _: Text) -> str:
    usd = reason.quantities[0]
    return f"{usd:.2f} USD/h and the available nodes allow no instance that meets its SLO"


BUDGET_TEXTS = {
    Code.TYPE_MIX: _type_mix,
    Code.MODEL_MIX: _model_mix,
    Code.DIVIDED_ANEW: _divided_anew,
    Code.SPOT_SHARE: _spot_share,
    Code.TYPE_NOT_SERVED: _type_not_served,
    Code.BUDGET_TOO_SMALL: _budget_too_small,
    Code.NO_BUDGET_OBJECTIVE: _no_budget_objective,
    Code.BUDGET_WITHOUT_PLAN: _budget_without_plan,
}
