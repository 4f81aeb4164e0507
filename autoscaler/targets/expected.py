"""More will be asked when an instance that is started now would be ready: it is started now.

Owns how far a forecast is believed (`demand.forecast` makes it). What counts is what it surely
means: less than that came in one of twenty held-back minutes. A forecast that is only noise would
start what is stopped again. It only raises: a forecast of less gives nothing away.
"""

from __future__ import annotations

from autoscaler.explain import reasons
from autoscaler.targets.view import ModelView, Proposal

_LEAST_REQ_PER_S = 1e-3
_HOLDS_MS = 120_000  # a forecast that was not renewed is of the past


def propose(view: ModelView) -> Proposal | None:
    """The expected rate, where it exceeds the target and what is planned."""
    rate = expected_req_per_s(view)
    expected = view.state.outlook.expected
    if expected is None or rate <= max(view.state.target_req_per_s, view.planned_req_per_s):
        return None
    in_s = max(0, expected.at_ms - view.now_ms) / 1000.0
    why = (
        f"{reasons.rate(rate)} req/s expected in {reasons.duration(in_s)} by {expected.strategy} "
        f"(mean error {reasons.rate(expected.error_req_per_s)}, "
        f"last value {reasons.rate(expected.last_error_req_per_s)})"
    )
    return Proposal("expected", rate, why)


def expected_req_per_s(view: ModelView) -> float:
    """The rate that is surely expected; 0 where none is."""
    expected = view.state.outlook.expected
    if expected is None or view.now_ms > expected.at_ms + _HOLDS_MS:
        return 0.0
    return expected.sure_req_per_s if expected.sure_req_per_s > _LEAST_REQ_PER_S else 0.0
