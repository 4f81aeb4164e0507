"""The plan requests that led to the last decisions, so that their alternatives can be computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from autoscaler.domain.cluster import Cluster
from autoscaler.planning.planner_messages import PlanAnswer, PlanRequest
from autoscaler.state.effects import Effect, PublishDecision, SolveRequested

Asked = tuple[PlanRequest, Cluster]
Key = tuple[int, int]
"""Leader token and number of a decision."""

_MOST_OPEN = 50
_MOST_KEPT = 200


class AnsweredObservation(Protocol):
    """The planner's answers that a tick received."""

    @property
    def answers(self) -> Sequence[PlanAnswer]: ...


class PlannedTick(Protocol):
    """The parts of a tick that concern plans."""

    @property
    def observation(self) -> AnsweredObservation: ...
    @property
    def effects(self) -> tuple[Effect, ...]: ...
    @property
    def cluster(self) -> Cluster: ...


class PlanRequests:
    """Remembers, for each decision, the last answered plan request of its model."""

    def __init__(self) -> None:
        self._open: dict[int, Asked] = {}
        self._answered: dict[str, Asked] = {}
        self._of: dict[Key, Asked] = {}

    def tick(self, done: PlannedTick) -> None:
        """Observe one tick."""
        for answer in done.observation.answers:
            asked = self._open.pop(answer.number, None)
            if asked is not None:
                self._answered.update(dict.fromkeys(asked[0].scope, asked))
        for effect in done.effects:
            if isinstance(effect, SolveRequested):
                self._open[effect.request.number] = effect.request, done.cluster
            elif isinstance(effect, PublishDecision):
                decision = effect.record
                follows = decision.change or decision.kind == "infeasible"
                if follows and decision.model in self._answered:
                    key = decision.leader_token, decision.number
                    self._of[key] = self._answered[decision.model]
        _limit(self._open, _MOST_OPEN)
        _limit(self._of, _MOST_KEPT)

    def of(self, key: Key) -> Asked | None:
        """The request that led to a decision; None if it is unknown or no longer kept."""
        return self._of.get(key)


def _limit(kept: dict[Any, Asked], most: int) -> None:
    """Drop the oldest entries."""
    while len(kept) > most:
        del kept[next(iter(kept))]
