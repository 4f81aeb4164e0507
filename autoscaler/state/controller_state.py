"""What the controller remembers from tick to tick, and what a tick is told.

Owns the values. Everything else is read off records. Times are domain ms since the epoch; 0 in a
field that ends in `_ms` means "not yet".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autoscaler.domain.cluster import Service
from autoscaler.domain.combo import Combo
from autoscaler.domain.quality_route import Cuts, ScoreMix
from autoscaler.domain.reason import Reason
from autoscaler.domain.workload import Demand, Lengths
from autoscaler.estimate.burstiness import BurstinessSums
from autoscaler.estimate.engine_view import EngineView
from autoscaler.estimate.forecast.forecast_state import ForecastState
from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.estimate.workload_mix import Mix
from autoscaler.planning.planner_messages import ChosenSplit, PlanAnswer, PlanRequest, Urgency
from autoscaler.rollout.backoff import Backoff
from autoscaler.rollout.reversal_limit import Reversals
from autoscaler.rollout.serving_group import ServingGroup
from autoscaler.rollout.supply import Supply
from autoscaler.rollout.traffic_split import TrafficSplit
from autoscaler.state.replan_trigger import Trigger
from topics.alerts import Alert
from topics.controls import Control
from topics.fleet import Assignment, Status
from topics.hourly_rates import Learnt
from topics.reason_codes import ReasonCode
from topics.routing import Routes
from topics.supply import Availability, Price


@dataclass(frozen=True, slots=True)
class Observation:
    """What a tick is told.

    demand: per model. statuses: latest per node. availability, prices: latest per pool, as feeds
    said them. answers: of the planner, each in one observation only. alerts: since the last tick.
    controls: what operators said last, by key. engines: by model, their own view when an alert that
    concerns them was taken in. unmanaged: servers that run and that Shoal did not start, per model
    for which that is known. lag_ms: of each topic on which this controller is behind, the age of
    the last moment up to which it has read everything; silence since then means nothing.
    """

    demand: Mapping[str, ModelDemand] = field(default_factory=dict)
    statuses: Mapping[str, Status] = field(default_factory=dict)
    availability: Mapping[str, Availability] = field(default_factory=dict)
    prices: Mapping[str, Price] = field(default_factory=dict)
    answers: tuple[PlanAnswer, ...] = ()
    alerts: tuple[Alert, ...] = ()
    controls: Mapping[str, Control] = field(default_factory=dict)
    engines: Mapping[str, EngineView] = field(default_factory=dict)
    unmanaged: Mapping[str, int] = field(default_factory=dict)
    lag_ms: Mapping[str, int] = field(default_factory=dict)

    def read_until_ms(self, topic: str, now_ms: int) -> int:
        """Everything that was written to `topic` until then is in this observation."""
        return now_ms - self.lag_ms.get(topic, 0)


@dataclass(frozen=True, slots=True)
class PendingApproval:
    """A change that waits for a person's word, in mode approve.

    number: of its decision. change: combos to add (+) and remove (-), from a fleet of `base`.
    kind, reasons: of the decision. rejected: it was, and is not made again before expires_ms.
    """

    number: int
    kind: str
    change: tuple[tuple[str, int], ...]
    base: tuple[tuple[str, int], ...]
    reasons: tuple[Reason, ...]
    at_ms: int
    expires_ms: int
    rejected: bool = False


@dataclass(frozen=True, slots=True)
class ModelState:
    """What is remembered of one model.

    lengths, arrival_cv: of requests and of the gaps between them, as planned for; clumps: what the
    latter follows from. mix: shares of the workload types as planned for, ways: where they go
    (both empty where types are not told apart). target_req_per_s:
    the demand planned for, raised by evidence and lowered by lasting evidence; target_why: that
    evidence. derate: measured over predicted
    capacity where SLOs were missed without a shortage, in (0, 1]; derated_ms: when it last moved.
    informed: windows have shown the rate, so the declared workload no longer counts. inherited: it
    ran when the controller started. over_since_ms: since when demand exceeds what is planned;
    surge_ms: when that was last proven, rose_ms: when it was first, of the rise that is followed.
    in_flight: (when, requests in flight) at two moments
    lately. no_data / said_no_data: telemetry stopped, and a decision says so. lost_ms: when
    capacity was lost that is neither replaced nor back yet. settled_ms: since when everything
    wanted is ready. last_out_ms, last_in_ms: of the last addition and removal.
    unmet_req_per_s / unmet_until_ms: what the planner could not add to, and until when it is not
    asked again for as much; lacks: some demand goes unserved for it. making_room_until_ms:
    something leaves so that something else finds room, and until then only a full plan says who
    among the models concerned takes it. told_ms: when it was last said that demand cannot be met;
    slo_told_ms: that no GPU meets the SLO;
    promise_told_ms / promise_told: that promises (which ones) cannot be kept. recommended /
    recommended_ms: counts last recommended, in modes that do not act. proposal: what waits for a
    person's word.
    outlook: what is expected when an instance started now would be ready. unmanaged: servers that
    Shoal did not start, as taken in last; None = not known. learnt: what running showed.
    """

    lengths: Lengths
    arrival_cv: float = 1.0
    burstiness: BurstinessSums = field(default_factory=BurstinessSums)
    mix: Mix = ()
    traffic_split: TrafficSplit = field(default_factory=TrafficSplit)
    target_req_per_s: float = 0.0
    target_why: Reason | None = None
    derate: float = 1.0
    derated_ms: int = 0
    rate_observed: bool = False
    restart_hold: bool = False
    overload_since_ms: int = 0
    increase_confirmed_ms: int = 0
    increase_started_ms: int = 0
    in_flight: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))
    no_data: bool = False
    no_data_noticed: bool = False
    lost_ms: int = 0
    settled_ms: int = 0
    last_out_ms: int = 0
    last_in_ms: int = 0
    turns: Reversals = field(default_factory=Reversals)
    unmet_req_per_s: float = 0.0
    unmet_until_ms: int = 0
    has_unserved: bool = False
    preemption_until_ms: int = 0
    shortage_noticed_ms: int = 0
    slo_noticed_ms: int = 0
    violations_noticed_ms: int = 0
    violations_noticed: tuple[ReasonCode, ...] = ()
    recommended: tuple[tuple[str, int], ...] = ()
    recommended_ms: int = 0
    proposal: PendingApproval | None = None
    forecast: ForecastState = field(default_factory=ForecastState)
    unmanaged: int | None = None
    drift: Learnt = field(default_factory=Learnt)


@dataclass(frozen=True, slots=True)
class Pending:
    """A request the planner has not answered yet, and why it was made."""

    request: PlanRequest
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class SplitState:
    """Thresholds of a service that stands for several models.

    cuts: in force at gateways, () = none yet. chosen: what was last planned, at the mix `mix`; its
    thresholds come into force when the fleet for them is there. changed_ms: when it last changed.
    planned: requests/s of each of its models in that plan.
    """

    cuts: Cuts = ()
    chosen: ChosenSplit | None = None
    mix: ScoreMix | None = None
    changed_ms: int = 0
    planned: tuple[tuple[str, float], ...] = ()

    @property
    def target_cuts(self) -> Cuts:
        """The thresholds planned for."""
        return self.chosen.cuts if self.chosen is not None else self.cuts


@dataclass(frozen=True, slots=True)
class FullPlans:
    """What is remembered of full plans.

    due: triggers that wait for the rate limit. asked_ms: when plans
    were asked for, lately. made_ms: when one last came, gap: how far it is from the best at most
    (below 0: not known), of those for models that are Shoal's to change; failed_ms: of models for
    which none has come since one last did not, when that was; told_ms: when it was last said;
    acted: whether the last one asked for was for models that are Shoal's to change.
    As the last request found it: usd_per_h: prices of nodes; lengths: of each model, at the last
    request that concerned it; nodes: per pool under what counted, or once the answer was carried
    out (None: no request yet); switchable: combos of models that were short, with how many of each
    could take other roles; tried: kinds of reasons why something had been left out of the plan
    before it, stood: where all groups were in their lives then.
    """

    due: tuple[Trigger, ...] = ()
    asked_ms: tuple[int, ...] = ()
    made_ms: int = 0
    gap: float = -1.0
    failed_ms: Mapping[str, int] = field(default_factory=dict)
    failure_noticed_ms: int = 0
    last_was_managed: bool = False
    usd_per_h: Mapping[str, float] = field(default_factory=dict)
    lengths: Mapping[str, Lengths] = field(default_factory=dict)
    nodes: Mapping[str, int] | None = None
    switchable: Mapping[str, int] = field(default_factory=dict)
    already_tried: tuple[Reason, ...] = ()
    group_positions: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class ControllerState:
    """All that the controller remembers.

    assignments and routes: the latest it published; an edge may write them again at any time.
    silent_nodes: not heard of; lost_nodes: of these, owned nodes and what ran something.
    combos: what the planner says of combos that run or were chosen; valued: the demand of each
    model that it valued them at.
    services: as declared when last looked at. pending: at most one request per urgency. full: what
    is remembered of full plans. held: pauses, releases, scheduled floors and freezes in force, by
    scope and kind. strays: instances that run although nobody assigned them. splits: thresholds of
    services that stand for several models, by name. ticked_ms: of the last tick; listens_since_ms:
    since when ticks follow each other (a leader that was stopped, or cut off from the broker, heard
    nothing meanwhile).
    """

    started_ms: int
    leader_token: int = 0
    groups: tuple[ServingGroup, ...] = ()
    assignments: Mapping[str, Assignment] = field(default_factory=dict)
    routes: Mapping[str, Routes] = field(default_factory=dict)
    models: Mapping[str, ModelState] = field(default_factory=dict)
    combos: Mapping[str, Combo] = field(default_factory=dict)
    evaluated_at: Mapping[str, Demand] = field(default_factory=dict)
    services: Mapping[str, Service] = field(default_factory=dict)
    supply: Supply = field(default_factory=Supply)
    backoff: Mapping[str, Backoff] = field(default_factory=dict)
    silent_nodes: frozenset[str] = frozenset()
    lost_nodes: frozenset[str] = frozenset()
    pending: Mapping[Urgency, Pending] = field(default_factory=dict)
    full: FullPlans = field(default_factory=FullPlans)
    next_serial: int = 1
    request_number: int = 0
    decision_number: int = 0
    plan_number: int = 0
    announce: Reason | None = None
    active_controls: Mapping[str, Reason] = field(default_factory=dict)
    unassigned: frozenset[str] = frozenset()
    splits: Mapping[str, SplitState] = field(default_factory=dict)
    ticked_ms: int = 0
    listens_since_ms: int = 0
