"""What a target rule may read of one model, and what it may propose.

Owns these two values. Rules propose rates; whether they are acted upon is for `targets.table`, and
what runs for them is the planner's choice.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.domain.cluster import Policy, Service
from autoscaler.domain.combo import Combo
from autoscaler.domain.reason import Reason
from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.state.controller_state import ModelState

FOLLOW_MS = 90_000
SLIVER = 0.025
RATE_EPSILON = 1e-6  # requests/s: less is rounding
IDLE_RATE = 1e-3  # what is planned for where next to nothing arrives


@dataclass(frozen=True, slots=True)
class RoutedTraffic:
    """Requests that come to a model by way of a service that stands for several. by: its name.

    sure_req_per_s: the least that it sends here, beyond doubt. planned_req_per_s: what the model
    must be able to serve before the service's thresholds change; 0 where they stay.
    """

    by: str
    least_req_per_s: float
    planned_req_per_s: float


@dataclass(frozen=True, slots=True)
class ModelView:
    """One model as it stands now.

    groups: how many combos are wanted; raw_req_per_s: what they hold, starting instances included.
    In modes that do not act: of what was recommended. ready: combos of which every instance is
    ready. settled: nothing is starting. held: requests that engines hold. frozen: why nothing may
    be removed now, None if it may. A proposal that waits for a person's word counts as carried out.
    routed: what comes by way of another service.
    """

    service: Service
    policy: Policy
    now_ms: int
    started_ms: int
    state: ModelState
    demand: ModelDemand
    groups: int = 0
    raw_req_per_s: float = 0.0
    ready: tuple[Combo, ...] = ()
    nothing_starting: bool = False
    requests_in_engines: int = 0
    route_generation: int = 0
    frozen: Reason | None = None
    routed: RoutedTraffic | None = None

    @property
    def is_surging(self) -> bool:
        """Whether a rise was proven lately: then the rate is followed without further proof."""
        surge_ms = self.state.increase_confirmed_ms
        return bool(surge_ms) and self.now_ms - surge_ms <= FOLLOW_MS

    @property
    def covers(self) -> bool:
        """Whether what is wanted covers the target, but for a sliver that utilization leaves room
        for: without it a fleet that fits exactly would change with every change of the target."""
        return self.planned_req_per_s >= self.state.target_req_per_s * (1.0 - SLIVER)

    @property
    def planned_req_per_s(self) -> float:
        """Demand that the wanted capacity is good for: utilization and derating applied."""
        return self.raw_req_per_s * self.service.utilization * self.state.derate

    def raw_for(self, req_per_s: float) -> float:
        """Capacity that is good for a demand of `req_per_s`: before utilization and derating."""
        return req_per_s / (self.service.utilization * self.state.derate)


@dataclass(frozen=True, slots=True)
class TargetProposal:
    """Plan for this demand. why: its code says which rule asks for it; since_ms: of the evidence,
    0 = now.

    evident: it was proven beyond chance (or is a promise), so it may exceed what is planned.
    followed: it goes on from an earlier proof.
    """

    req_per_s: float
    why: Reason
    since_ms: int = 0
    is_proven: bool = True
    continues_proof: bool = False
