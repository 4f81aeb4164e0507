"""The controller's own lag on topics: unread records do not prove silence, so nothing is removed
while the controller lags behind.

`Observation.lag_ms` holds the lag per topic.
"""

from __future__ import annotations

from collections.abc import Mapping

from autoscaler.domain.cluster import Service
from autoscaler.domain.reason import Reason
from topics.reason_codes import ReasonCode
from topics.topic_table import DEMAND, STATUS, TELEMETRY

KIND = "lag"
"""Kind of the restriction in `ActiveControls.reasons`; its scope is the whole cluster."""

_FLEET, _TRAFFIC = (STATUS.name,), (TELEMETRY.name, DEMAND.name)


def topics_behind(lag_ms: Mapping[str, int]) -> tuple[str, ...]:
    """Topics with lag on which silence would count as evidence."""
    return tuple(name for name in (*_FLEET, *_TRAFFIC) if name in lag_ms)


def frozen(lag_ms: Mapping[str, int], services: tuple[Service, ...]) -> dict[str, Reason]:
    """By model, the reason why nothing may be removed; empty without lag."""
    late = topics_behind(lag_ms)
    if not late:
        return {}
    return {s.model: Reason(ReasonCode.UNREAD, s.model, late) for s in services}


def behind(lag_ms: Mapping[str, int]) -> Reason | None:
    """The reason that names the topics with lag; None without lag. The reason has no figures, so it
    changes only if the topics change."""
    late = topics_behind(lag_ms)
    return Reason(ReasonCode.READER_BEHIND, "*", late) if late else None
