"""The planner in virtual time: plans in this process; answers arrive after a modelled solve time.

Urgent and full requests are planned in parallel, as in the solver process. Requests of one urgency
are planned one after the other. A plan depends only on its request, so a repeated request gets the
cached plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.reason import Reason
from autoscaler.domain.validation import finite
from autoscaler.performance.profile_sources import cluster_profile
from autoscaler.planning.planner import answer_request
from autoscaler.planning.planner_messages import PlanAnswer, PlanRequest, Urgency, no_plan_answer
from autoscaler.planning.strategies.registry import strategy_for
from topics.reason_codes import ReasonCode

PlanFunction = Callable[[PlanRequest, Cluster], PlanAnswer]


@dataclass(frozen=True, slots=True)
class PlanTimes:
    """Domain seconds from plan request to answer."""

    urgent_s: float = 0.5
    full_s: float = 3.0

    def __post_init__(self) -> None:
        finite("solve times: urgent_s", self.urgent_s, 0.0, 3600.0)
        finite("solve times: full_s", self.full_s, 0.0, 3600.0)


def plan_in_process(request: PlanRequest, cluster: Cluster) -> PlanAnswer:
    """Plan with the production planner. Work limits replace time limits, so that answers are
    reproducible."""
    return answer_request(request, cluster, cluster_profile(cluster), strategy_for(cluster.policy))


class VirtualPlanner:
    """Takes plan requests and returns the answers when they are due. Times in ms of the event
    queue."""

    def __init__(self, times: PlanTimes, plan: PlanFunction = plan_in_process) -> None:
        self._times = times
        self._plan = plan
        self._free_at_ms = dict.fromkeys(Urgency, 0.0)
        self._pending: list[tuple[float, PlanAnswer]] = []
        self._last: tuple[PlanRequest, Cluster, PlanAnswer] | None = None
        self.down_until_ms = 0.0

    def submit(self, request: PlanRequest, cluster: Cluster, now_ms: float) -> float:
        """Take a plan request. Returns the time at which its answer is due. While the planner is
        down, the answer is empty."""
        urgent = request.urgency is Urgency.URGENT
        takes_ms = 1000.0 * (self._times.urgent_s if urgent else self._times.full_s)
        if now_ms < self.down_until_ms:
            plan_answer = no_plan_answer(request, Reason(ReasonCode.SOLVER_AWAY))
        else:
            plan_answer = self._plan_or_repeat(request, cluster)
        due_ms = max(now_ms, self._free_at_ms[request.urgency]) + takes_ms
        self._free_at_ms[request.urgency] = due_ms
        self._pending.append((due_ms, plan_answer))
        return due_ms

    def _plan_or_repeat(self, request: PlanRequest, cluster: Cluster) -> PlanAnswer:
        """The plan for `request`. Plans are cached, because in quiet hours equal requests come
        every five minutes."""
        asked = replace(request, number=0, at_ms=0)
        if self._last is None or self._last[:2] != (asked, cluster):
            self._last = asked, cluster, self._plan(request, cluster)
        return replace(self._last[2], number=request.number)

    def is_due(self, now_ms: float) -> bool:
        """Whether an answer is due by `now_ms` and not yet taken."""
        return any(due_ms <= now_ms for due_ms, _ in self._pending)

    def take_answers(self, now_ms: float) -> tuple[PlanAnswer, ...]:
        """Remove and return the answers that are due by `now_ms`."""
        ready = tuple(plan_answer for due_ms, plan_answer in self._pending if due_ms <= now_ms)
        self._pending = [item for item in self._pending if item[0] > now_ms]
        return ready
