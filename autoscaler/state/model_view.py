"""The view of one model that sizing rules read, and the proposal that they return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autoscaler.domain.cluster import Policy, Service
from autoscaler.domain.combo import Combo
from autoscaler.domain.reason import Reason
from autoscaler.estimate.engine_rate import EngineRate, GroupCount
from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.rollout.serving_group import ServingGroup
from autoscaler.state.model_state import ModelState
from autoscaler.state.quality_state import RoutedTraffic

FOLLOW_MS = 90_000
"""Time in ms after a confirmed increase in which the target follows the rate without new proof."""
SLIVER = 0.025
"""Share of the target that may be missing from the planned capacity. It equals the hysteresis of
plans, so that small changes of the target request no plan."""
RATE_EPSILON = 1e-6  # requests/s; smaller differences are rounding errors
IDLE_RATE = 1e-3  # requests/s; the target of an almost idle model


@dataclass(frozen=True, slots=True)
class ObservedServing:
    """The observed instances and routes of one model. ready: combos with all instances ready.
    nothing_starting: whether no instance is starting. requests_in_engines: as reported by engines.
    route_generation: of the published routes, 0 without routes. counting: groups that count as
    planned capacity. group_counts, engine_rates: counts
    of accepted requests by group, and rates by these counts (shortest span first), both empty if
    telemetry has shown arrivals for two minutes."""

    ready: tuple[Combo, ...] = ()
    nothing_starting: bool = False
    requests_in_engines: int = 0
    route_generation: int = 0
    counting: tuple[ServingGroup, ...] = ()
    group_counts: Mapping[str, GroupCount] = field(default_factory=dict)
    engine_rates: tuple[EngineRate, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelView:
    """One model at this moment. groups: number of planned combos; raw_req_per_s: their raw
    capacity, including starting instances. In modes that do not act, both describe the
    recommendation. frozen: the reason why nothing may be removed now, None if removals are allowed.
    An open proposal counts as applied. routed: traffic through a service that routes to several
    models.
    """

    service: Service
    policy: Policy
    now_ms: int
    started_ms: int
    state: ModelState
    demand: ModelDemand
    groups: int = 0
    raw_req_per_s: float = 0.0
    serving: ObservedServing = field(default_factory=ObservedServing)
    frozen: Reason | None = None
    routed: RoutedTraffic | None = None
    planned_req_per_s: float = field(init=False)
    """Demand in requests/s that the planned capacity can serve: raw capacity times utilization and
    derating."""
    required_req_per_s: float = field(init=False)
    """The demand for which capacity is bought: the need, and what bridges a rollout."""
    covers: bool = field(init=False)
    """Whether the planned capacity covers the need, within a small tolerance. Without it, a fleet
    that fits exactly would change with every change of the need."""
    is_surging: bool = field(init=False)
    """Whether an increase was confirmed recently, so that the target follows the rate without new
    proof."""

    def __post_init__(self) -> None:
        state, fill = self.state, object.__setattr__
        planned = self.raw_req_per_s * self.service.utilization * state.capacity.derate
        required = state.target.needed_req_per_s + state.rollout.bridge_req_per_s
        surge_ms = state.target.increase_confirmed_ms
        fill(self, "planned_req_per_s", planned)
        fill(self, "required_req_per_s", required)
        fill(self, "covers", planned >= required * (1.0 - SLIVER))
        fill(self, "is_surging", bool(surge_ms) and self.now_ms - surge_ms <= FOLLOW_MS)

    @property
    def kept_req_per_s(self) -> float:
        """The demand whose capacity stays: the target, as far as capacity for it is planned, and at
        least the required rate. A loss of capacity alone buys nothing."""
        target = self.state.target.req_per_s + self.state.rollout.bridge_req_per_s
        return max(self.required_req_per_s, min(target, self.planned_req_per_s))

    def raw_for(self, req_per_s: float) -> float:
        """Raw capacity in requests/s that a demand of `req_per_s` needs: demand divided by
        utilization and derating."""
        return req_per_s / (self.service.utilization * self.state.capacity.derate)


@dataclass(frozen=True, slots=True)
class TargetProposal:
    """A proposed target. why: the reason, whose code names the rule; since_ms: start of the
    evidence, 0 = now. is_proven: whether the evidence is significant or the rate is declared, so
    that the target may exceed the planned capacity. continues_proof: whether the proposal continues
    an earlier proof.
    """

    req_per_s: float
    why: Reason
    since_ms: int = 0
    is_proven: bool = True
    continues_proof: bool = False
