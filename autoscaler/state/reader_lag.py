"""What this controller has not read yet is not silence: nothing is removed until it has caught up.

Pure. How far it is behind comes with the observation (`Observation.lag_ms`).
"""

from __future__ import annotations

from collections.abc import Mapping

from autoscaler.domain.cluster import Service
from topics.topic_table import DEMAND, STATUS, TELEMETRY

KIND = "lag"
"""Of what `ControllerState.held` says of it, for the whole cluster."""

_FLEET, _TRAFFIC = (STATUS.name,), (TELEMETRY.name, DEMAND.name)


def topics_behind(lag_ms: Mapping[str, int]) -> tuple[str, ...]:
    """Topics whose silence would be taken for news, and on which this controller is behind."""
    return tuple(name for name in (*_FLEET, *_TRAFFIC) if name in lag_ms)


def frozen(lag_ms: Mapping[str, int], services: tuple[Service, ...]) -> dict[str, str]:
    """Why nothing may be removed, by model; empty where the controller has caught up."""
    late = topics_behind(lag_ms)
    if not late:
        return {}
    why = f"this controller is behind on {' and '.join(late)}"
    return {service.model: why for service in services}


def words(lag_ms: Mapping[str, int]) -> str:
    """A sentence for people, "" where the controller has caught up. It names no figure, so that
    it changes only when the topics do."""
    late = topics_behind(lag_ms)
    if not late:
        return ""
    return (
        f"this controller is behind on {' and '.join(late)}: silence is unknown, "
        "no node counts as lost for it, and scale-in is paused until it has caught up"
    )
