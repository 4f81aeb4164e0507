"""A reason to plan models anew. The rules that find them are in `autoscaler.replan`."""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.domain.reason import Reason
from topics.reason_codes import ReasonCode


@dataclass(frozen=True, slots=True)
class Trigger:
    """Plan the models in `scope` anew because of `why`; an empty scope means all models."""

    scope: tuple[str, ...]
    why: Reason

    @property
    def is_partly_applied(self) -> bool:
        """Whether a part of the last plan was left out."""
        return self.why.code is ReasonCode.LEFT_OUT


def partly_applied(model: str, *why: Reason, of_all: bool = False) -> Trigger:
    """A part of the last plan for `model` was left out because of `why`. of_all: every model is
    planned again for it."""
    scope = () if of_all else (model,)
    return Trigger(scope, Reason(ReasonCode.LEFT_OUT, model, because=why))
