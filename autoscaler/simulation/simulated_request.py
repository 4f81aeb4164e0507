"""A request on its way through a simulation, and how it ended.

Owns the values. Knows nothing of gateways or engines. Times in ms of the agenda.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from topics.routing import Endpoint


class Ending(StrEnum):
    """What became of a request. PENDING: it has not ended."""

    PENDING = "pending"
    SERVED = "served"
    FAILED = "failed"  # an engine was lost, or no engine takes a request that long
    REFUSED = "refused"  # it waited too long, or too many waited
    DROPPED = "dropped"  # the simulation ended first


@dataclass(slots=True, eq=False)
class Call:
    """One request. first_ms, end_ms: of the first token and of the end, None before.

    tried: instances that failed it; attempts: how often it was sent to one. kind: which of the
    routes' types it is; group: that took it last, or the path through a model of components.
    model: that answers it; through: the service that chose it, "" where its client did.
    """

    id: int
    model: str
    arrival_ms: float
    input_tokens: int
    output_tokens: int
    first_ms: float | None = None
    end_ms: float | None = None
    ending: Ending = Ending.PENDING
    attempts: int = 0
    tried: frozenset[Endpoint] = frozenset()
    kind: str = ""
    group: str = ""
    media: frozenset[str] = frozenset()
    score: float | None = None
    through: str = ""
