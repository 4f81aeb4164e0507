"""Instances of a model that a new controller takes over without memory, e.g. after its topics were
lost, are held: its predecessor kept them for a reason, and the declared lengths of requests say
little about the capacity of these instances.
"""

from __future__ import annotations

from autoscaler.sizing.excess_duration import excess_duration_s
from autoscaler.state.model_view import ModelView


def is_unmeasured(view: ModelView) -> bool:
    """Whether a held model has not been observed for a local window yet. Until then no capacity is
    added or exchanged."""
    return _is_held(view, view.policy.local_window_s)


def keeps_all(view: ModelView) -> bool:
    """Whether no instance of a held model may be removed, because no excess could be proven yet."""
    return _is_held(view, excess_duration_s(view.service, view.policy))


def _is_held(view: ModelView, for_s: int) -> bool:
    return view.state.target.restart_hold and view.now_ms - view.started_ms < 1000 * for_s
