"""More will be asked when an instance that is started now would be ready: it is started now.

Owns how far a forecast is believed (`demand.forecast` makes it). It only raises: a forecast of less
gives nothing away, and where capacity covers what is expected, less the error that the forecast had
on held-back minutes, nothing is started for it.
"""

from __future__ import annotations

from autoscaler.explain import reasons
from autoscaler.targets.view import ModelView, Proposal

_LEAST_REQ_PER_S = 1e-3
_HOLDS_MS = 120_000  # a forecast that was not renewed is of the past


def propose(view: ModelView) -> Proposal | None:
    """The expected rate, where it exceeds the target and surely what is planned."""
    rate = expected_req_per_s(view)
    expected = view.state.outlook.expected
    if expected is None or rate <= view.state.target_req_per_s:
        return None
    if rate - expected.error_req_per_s <= view.planned_req_per_s:
        return None
    in_s = max(0, expected.at_ms - view.now_ms) / 1000.0
    why = (
        f"{reasons.rate(rate)} req/s expected in {reasons.duration(in_s)} by {expected.strategy} "
        f"(mean error {reasons.rate(expected.error_req_per_s)}, "
        f"last value {reasons.rate(expected.last_error_req_per_s)})"
    )
    return Proposal("expected", rate, why)


def expected_req_per_s(view: ModelView) -> float:
    """The rate that is expected; 0 where nothing is, or no more than what the forecast errs by."""
    expected = view.state.outlook.expected
    if expected is None or view.now_ms > expected.at_ms + _HOLDS_MS:
        return 0.0
    sure = expected.req_per_s > max(_LEAST_REQ_PER_S, expected.error_req_per_s)
    return expected.req_per_s if sure else 0.0
