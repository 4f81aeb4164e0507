"""The controller's own lag: unread records are not silence, so nothing is removed while the
controller is behind.

`Observation.lag_ms` holds the lag per topic.
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
    """Topics on which this controller is behind and on which silence would count as evidence."""
    return tuple(name for name in (*_FLEET, *_TRAFFIC) if name in lag_ms)


def frozen(lag_ms: Mapping[str, int], services: tuple[Service, ...]) -> dict[str, Reason]:
    """By model, why nothing may be removed; empty if the controller is not behind."""
    late = topics_behind(lag_ms)
    if not late:
        return {}
    return {s.model: Reason(ReasonCode.UNREAD, s.model, late) for s in services}


def behind(lag_ms: Mapping[str, int]) -> Reason | None:
    """The reason that names the topics on which the controller is behind; None if there is none.
    The reason has no figures, so it changes only if the topics change."""
    late = topics_behind(lag_ms)
    return Reason(ReasonCode.READER_BEHIND, "*", late) if late else None
