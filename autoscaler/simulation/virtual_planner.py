"""The planner in virtual time: asked in process, its answer delivered after a modelled solve time.

Owns the times and the questions under way. Urgent and full questions run beside each other, as
they do in the solver process; of one kind, the later waits for the earlier. A plan follows from its
question alone, so what was asked last is not planned again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.reason import Reason
from autoscaler.domain.validation import finite
from autoscaler.performance.profile_sources import profile_of
from autoscaler.planning.planner import answer
from autoscaler.planning.planner_messages import PlanAnswer, PlanRequest, Urgency, unanswered
from autoscaler.planning.strategies.registry import strategy_for
from topics.reason_codes import ReasonCode

Plan = Callable[[PlanRequest, Cluster], PlanAnswer]


@dataclass(frozen=True, slots=True)
class SolveTimes:
    """Domain seconds from question to answer."""

    urgent_s: float = 0.5
    full_s: float = 3.0

    def __post_init__(self) -> None:
        finite("solve times: urgent_s", self.urgent_s, 0.0, 3600.0)
        finite("solve times: full_s", self.full_s, 0.0, 3600.0)


def plan_in_process(request: PlanRequest, cluster: Cluster) -> PlanAnswer:
    """The real planner, without a clock: work limits only, so answers are reproducible."""
    return answer(request, cluster, profile_of(cluster), strategy_for(cluster.policy))


class SimSolver:
    """Questions in, answers out when they are due. Times in ms of the agenda."""

    def __init__(self, times: SolveTimes, plan: Plan = plan_in_process) -> None:
        self._times = times
        self._plan = plan
        self._free_ms = dict.fromkeys(Urgency, 0.0)
        self._due: list[tuple[float, PlanAnswer]] = []
        self._last: tuple[PlanRequest, Cluster, PlanAnswer] | None = None
        self.away_until_ms = 0.0

    def ask(self, request: PlanRequest, cluster: Cluster, now_ms: float) -> float:
        """Take a question; when its answer is due. While the solver is away it comes back
        unanswered."""
        urgent = request.urgency is Urgency.URGENT
        takes_ms = 1000.0 * (self._times.urgent_s if urgent else self._times.full_s)
        if now_ms < self.away_until_ms:
            found = unanswered(request, Reason(ReasonCode.SOLVER_AWAY))
        else:
            found = self._planned(request, cluster)
        due_ms = max(now_ms, self._free_ms[request.urgency]) + takes_ms
        self._free_ms[request.urgency] = due_ms
        self._due.append((due_ms, found))
        return due_ms

    def _planned(self, request: PlanRequest, cluster: Cluster) -> PlanAnswer:
        """The plan; quiet hours ask the same every five minutes."""
        asked = replace(request, number=0, at_ms=0)
        if self._last is None or self._last[:2] != (asked, cluster):
            self._last = asked, cluster, self._plan(request, cluster)
        return replace(self._last[2], number=request.number)

    def is_due(self, now_ms: float) -> bool:
        """Whether an answer has come by `now_ms` that was not handed out yet."""
        return any(due_ms <= now_ms for due_ms, _ in self._due)

    def answers(self, now_ms: float) -> tuple[PlanAnswer, ...]:
        """What has come by `now_ms` and was not handed out yet."""
        ready = tuple(found for due_ms, found in self._due if due_ms <= now_ms)
        self._due = [item for item in self._due if item[0] > now_ms]
        return ready
