"""The state that the controller keeps from tick to tick, and the observation of a tick.

Times are domain ms since the epoch; in a field that ends in `_ms`, 0 means "not yet".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autoscaler.domain.cluster import Service
from autoscaler.domain.combo import Combo
from autoscaler.domain.reason import Reason
from autoscaler.domain.workload import Demand, Lengths
from autoscaler.estimate.engine_view import EngineView
from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.planning.planner_messages import PlanAnswer, PlanRequest, Urgency
from autoscaler.rollout.backoff import Backoff
from autoscaler.rollout.serving_group import ServingGroup
from autoscaler.rollout.supply import Supply
from autoscaler.state.model_state import ModelState
from autoscaler.state.quality_state import SplitState
from autoscaler.state.replan_trigger import Trigger
from topics.alerts import Alert
from topics.controls import Control
from topics.fleet import Assignment, Status
from topics.routing import Routes
from topics.supply import Availability, Price


@dataclass(frozen=True, slots=True)
class Observation:
    """The inputs of one tick.

    demand: by model. statuses: latest of each node. availability, prices: latest of each pool, from
    feeds. answers: planner answers, each in one observation only. alerts: alerts since the last
    tick. controls: latest record of each key. engines: by model, the load that engines reported
    themselves when an alert about the model arrived. unmanaged: number of servers that Shoal did
    not start, by model and combo, for models for which it is known. lag_ms: by topic, the lag of
    this controller; topics without lag are absent. On a topic with lag, silence is no evidence.
    """

    demand: Mapping[str, ModelDemand] = field(default_factory=dict)
    statuses: Mapping[str, Status] = field(default_factory=dict)
    availability: Mapping[str, Availability] = field(default_factory=dict)
    prices: Mapping[str, Price] = field(default_factory=dict)
    answers: tuple[PlanAnswer, ...] = ()
    alerts: tuple[Alert, ...] = ()
    controls: Mapping[str, Control] = field(default_factory=dict)
    engines: Mapping[str, EngineView] = field(default_factory=dict)
    unmanaged: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    lag_ms: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pending:
    """A request that the planner has not answered yet, and the triggers of this request."""

    request: PlanRequest
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class LastRequest:
    """The last request for a full plan. managed: whether it was for managed models. usd_per_h:
    prices of nodes. lengths: request lengths of each model at the last request that concerned it.
    switchable: combos of models below target, and how many of each could take other roles.
    already_tried: reasons for a partly applied plan. positions_digest: digest of the life-cycle
    states of all groups at that time.
    """

    managed: bool = False
    usd_per_h: Mapping[str, float] = field(default_factory=dict)
    lengths: Mapping[str, Lengths] = field(default_factory=dict)
    switchable: Mapping[str, int] = field(default_factory=dict)
    already_tried: tuple[Reason, ...] = ()
    positions_digest: str = ""


@dataclass(frozen=True, slots=True)
class FullPlans:
    """Memory of full plans.

    due: triggers that wait for the rate limit. asked_ms: times of recent requests. made_ms, gap:
    time and proven gap (below 0: unknown) of the last plan for managed models. failed_ms: by model,
    time of the last failure since its last plan. failure_noticed_ms: time of the last notice of a
    failure. last: the last request.
    """

    due: tuple[Trigger, ...] = ()
    asked_ms: tuple[int, ...] = ()
    made_ms: int = 0
    gap: float = -1.0
    failed_ms: Mapping[str, int] = field(default_factory=dict)
    failure_noticed_ms: int = 0
    last: LastRequest = field(default_factory=LastRequest)


@dataclass(frozen=True, slots=True)
class Term:
    """The time of this leader. started_ms: time since which the state continues without a loss,
    through the terms of earlier leaders. ticked_ms: last tick, possibly of an earlier leader.
    listens_since_ms: time since which there was no long gap between ticks, because a stopped or
    disconnected leader receives nothing. announce: the reason to report at the first tick that this
    leader took over. begun: whether this leader has ticked.
    """

    started_ms: int
    leader_token: int = 0
    ticked_ms: int = 0
    listens_since_ms: int = 0
    announce: Reason | None = None
    begun: bool = False


@dataclass(frozen=True, slots=True)
class ObservedFleet:
    """Faults of the fleet. silent_nodes: nodes without recent statuses; lost_nodes: the silent
    nodes that are owned or had instances. unassigned: instances that no assignment names. backoff:
    pools and nodes on which launches failed."""

    silent_nodes: frozenset[str] = frozenset()
    lost_nodes: frozenset[str] = frozenset()
    unassigned: frozenset[str] = frozenset()
    backoff: Mapping[str, Backoff] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Published:
    """The last published records, by node and by model. The caller may write them again at any
    time. deleted_generation: highest generation of a record whose key this leader deleted; if its
    name returns, generations continue above it."""

    assignments: Mapping[str, Assignment] = field(default_factory=dict)
    routes: Mapping[str, Routes] = field(default_factory=dict)
    deleted_generation: int = 0


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The planner's last evaluation. combos: capacity and cost of running and chosen combos.
    demands: by model, the demand for which the planner computed them."""

    combos: Mapping[str, Combo] = field(default_factory=dict)
    demands: Mapping[str, Demand] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Declared:
    """Declarations at the last tick. services: by model. controls: pauses, releases, scheduled
    floors and freezes in effect, by scope and kind."""

    services: Mapping[str, Service] = field(default_factory=dict)
    controls: Mapping[str, Reason] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Numbers:
    """Serial numbers. group: of the next group. request, decision, plan: the last number given."""

    group: int = 1
    request: int = 0
    decision: int = 0
    plan: int = 0


@dataclass(frozen=True, slots=True)
class ControllerState:
    """All data that the controller keeps between ticks. groups: the fleet that Shoal wants, placed
    on nodes. supply: prices and offers. pending: at most one request per urgency. full: memory of
    full plans. splits: thresholds by service."""

    term: Term
    groups: tuple[ServingGroup, ...] = ()
    observed: ObservedFleet = field(default_factory=ObservedFleet)
    published: Published = field(default_factory=Published)
    models: Mapping[str, ModelState] = field(default_factory=dict)
    evaluated: Evaluated = field(default_factory=Evaluated)
    declared: Declared = field(default_factory=Declared)
    supply: Supply = field(default_factory=Supply)
    pending: Mapping[Urgency, Pending] = field(default_factory=dict)
    full: FullPlans = field(default_factory=FullPlans)
    splits: Mapping[str, SplitState] = field(default_factory=dict)
    numbers: Numbers = field(default_factory=Numbers)
