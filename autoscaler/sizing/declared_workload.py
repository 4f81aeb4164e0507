"""The declared workload counts until windows have shown the rate.

Without it a model would start with its floor and meet its first minutes short.
"""

from __future__ import annotations

from autoscaler.explain import reasons
from autoscaler.state.model_view import ModelView, Proposal


def propose(view: ModelView) -> Proposal | None:
    """The declared rate of a model that is not informed yet."""
    declared = view.service.req_per_s
    if view.state.informed or declared <= 0.0:
        return None
    return Proposal("declared", declared, f"declared workload of {reasons.rate(declared)} req/s")
