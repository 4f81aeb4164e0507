"""A request in a simulation, and its outcome. Times in ms of the event queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from topics.routing import Endpoint


class Ending(StrEnum):
    """Outcome of a request. PENDING: the request has not ended."""

    PENDING = "pending"
    SERVED = "served"
    FAILED = "failed"  # an engine was lost, or no engine accepts the length
    REFUSED = "refused"  # it waited too long, or too many waited
    DROPPED = "dropped"  # the simulation ended first


@dataclass(slots=True, eq=False)
class Call:
    """One request.

    first_ms, end_ms: times of the first token and of the end, None before. tried: instances at
    which the request failed. attempts: how often it was sent to an instance. kind: its request kind
    in the routes. group: the group that took it last, or the path through a model of components.
    model: the model that answers it. routed_by: the service that chose the model, "" if the client
    did. blocks: hashes of the full blocks of the prompt. cached_tokens: prompt tokens that came
    from a prefix cache.
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
    blocks: Sequence[int] = ()
    cached_tokens: int = 0
