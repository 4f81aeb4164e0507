"""A request in a simulation, and how it ended. Times in ms of the event queue."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from topics.routing import Endpoint


class Ending(StrEnum):
    """Outcome of a request. PENDING: it has not ended."""

    PENDING = "pending"
    SERVED = "served"
    FAILED = "failed"  # an engine was lost, or no engine accepts such a length
    REFUSED = "refused"  # it waited too long, or too many waited
    DROPPED = "dropped"  # the simulation ended first


@dataclass(slots=True, eq=False)
class Call:
    """One request.

    first_ms, end_ms: of the first token and of the end, None before. tried: instances that failed
    it. attempts: how often it was sent to an instance. kind: its request kind in the routes. group:
    the last one that took it, or the path through a model of components. model: the model that
    answers it. routed_by: the service that chose the model, "" if the client did.
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
    routed_by: str = ""
