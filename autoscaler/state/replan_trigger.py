"""A trigger of a full plan. The rules that produce them are in `autoscaler.replan`."""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.domain.reason import Reason
from topics.reason_codes import ReasonCode


@dataclass(frozen=True, slots=True)
class Trigger:
    """A reason `why` to plan the models in `scope` again; an empty scope means all models."""

    scope: tuple[str, ...]
    why: Reason

    @property
    def is_partly_applied(self) -> bool:
        """Whether the reason is that the last plan was applied only in part."""
        return self.why.code is ReasonCode.LEFT_OUT

    @property
    def frees_capacity(self) -> bool:
        """Whether the reason is that capacity became superfluous."""
        return self.why.code in (ReasonCode.EXCESS, ReasonCode.SCATTERED)


def partly_applied(model: str, *why: Reason, of_all: bool = False) -> Trigger:
    """A trigger, because the last plan for `model` was applied only in part for the reason `why`.
    of_all: plan all models again instead of `model` alone."""
    scope = () if of_all else (model,)
    return Trigger(scope, Reason(ReasonCode.LEFT_OUT, model, because=why))
