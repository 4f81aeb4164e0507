"""The names that triggers and sizing rules of other packages may import: see
docs/reference/extensions.md.

From 0.1.0 on, these names, their fields and their meaning change only with a note in the CHANGELOG.
"""

from __future__ import annotations

from autoscaler.domain.reason import Reason
from autoscaler.replan.trigger_inputs import TriggerInputs
from autoscaler.state.model_view import ModelView, TargetProposal
from autoscaler.state.replan_trigger import Trigger
from topics.reason_codes import ReasonCode

__all__ = ["ModelView", "Reason", "TargetProposal", "Trigger", "TriggerInputs", "reason"]


def reason(extension: str, subject: str, text: str) -> Reason:
    """The reason of an extension. subject: the model, pool or node; "*" for the fleet. text: for
    people, such as "a campaign starts at 18:00"."""
    return Reason(ReasonCode.EXTENSION, subject, (extension,), quoted=text)
