"""What this controller has not read yet is not silence: nothing is removed until it has caught up.

Pure. How far it is behind comes with the observation (`Observation.lag_ms`).
"""

from __future__ import annotations

from collections.abc import Mapping

from autoscaler.domain.cluster import Service
from autoscaler.domain.reason import Reason
from topics.reason_codes import ReasonCode
from topics.topic_table import DEMAND, STATUS, TELEMETRY

KIND = "lag"
"""Of what `ControllerState.held` says of it, for the whole cluster."""

_FLEET, _TRAFFIC = (STATUS.name,), (TELEMETRY.name, DEMAND.name)


def topics_behind(lag_ms: Mapping[str, int]) -> tuple[str, ...]:
    """Topics whose silence would be taken for news, and on which this controller is behind."""
    return tuple(name for name in (*_FLEET, *_TRAFFIC) if name in lag_ms)


def frozen(lag_ms: Mapping[str, int], services: tuple[Service, ...]) -> dict[str, Reason]:
    """Why nothing may be removed, by model; empty where the controller has caught up."""
    late = topics_behind(lag_ms)
    if not late:
        return {}
    return {s.model: Reason(ReasonCode.UNREAD, s.model, late) for s in services}


def behind(lag_ms: Mapping[str, int]) -> Reason | None:
    """That the controller is behind, None where it has caught up. It names no figure, so that it
    changes only when the topics do."""
    late = topics_behind(lag_ms)
    return Reason(ReasonCode.READER_BEHIND, "*", late) if late else None
