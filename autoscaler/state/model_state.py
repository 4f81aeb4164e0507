"""The state of one model: eight values that last from tick to tick.

Times are domain ms since the epoch; in a field that ends in `_ms`, 0 means "not yet".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from autoscaler.domain.measured_room import MeasuredRoom
from autoscaler.domain.reason import Reason
from autoscaler.domain.workload import Lengths
from autoscaler.estimate.burstiness import BurstinessSums
from autoscaler.estimate.engine_rate import Moment
from autoscaler.estimate.forecast.forecast_state import ForecastState
from autoscaler.estimate.workload_mix import Mix
from autoscaler.planning.planner_messages import FleetChange
from autoscaler.rollout.traffic_split import TrafficSplit
from autoscaler.state.rollout_state import RolloutState
from topics import checks
from topics.reason_codes import ReasonCode

ROLLOUT_PROPOSAL = "rollout"
"""Kind of a proposal to roll out the declared version, without a change of counts."""


@dataclass(frozen=True, slots=True)
class PendingApproval:
    """A change that waits for a person's approval, in mode approve. number: number of its decision.
    change: combos to add (+) and remove (-), relative to the fleet `base`; named: the same change
    by groups. kind, reasons: kind and reasons of the decision. rejected: a person rejected the
    change; it is not proposed again before expires_ms. leader_token: token of that decision.
    earlier: former versions of the proposal, newest first. An answer to any of them counts.
    """

    number: int
    kind: str
    change: tuple[tuple[str, int], ...]
    named: FleetChange
    base: tuple[tuple[str, int], ...]
    reasons: tuple[Reason, ...]
    at_ms: int
    expires_ms: int
    rejected: bool = False
    leader_token: int = 0
    earlier: tuple[PendingApproval, ...] = ()

    @property
    def versions(self) -> tuple[PendingApproval, ...]:
        """All versions of the proposal that can be answered, newest first."""
        return self, *self.earlier


@dataclass(frozen=True, slots=True)
class DemandEstimate:
    """Requests as they are planned for. lengths, arrival_cv: planned request lengths and CV of the
    times between arrivals; burstiness: sums from which arrival_cv is computed. mix: planned shares
    of the workload types, empty without types. moments: requests at the last few moments,
    oldest first. forecast: expected demand at the time when an instance started now would be ready.
    rate_observed: whether windows have measured the rate, so that the declared workload no longer
    counts. no_data, no_data_noticed: whether telemetry stopped, and whether a decision has reported
    that.
    """

    lengths: Lengths
    arrival_cv: float = 1.0
    burstiness: BurstinessSums = field(default_factory=BurstinessSums)
    mix: Mix = ()
    moments: tuple[Moment, ...] = ()
    forecast: ForecastState = field(default_factory=ForecastState)
    rate_observed: bool = False
    no_data: bool = False
    no_data_noticed: bool = False


@dataclass(frozen=True, slots=True)
class Target:
    """The planned demand in requests/s, raised at once by evidence and lowered by lasting evidence:
    capacity for it stays. need_req_per_s: the part that present evidence supports, for which
    capacity is bought; None: all of it. why: the evidence for req_per_s. restart_hold: whether the
    controller took over running instances of the model without memory (see
    `sizing.scale_in.conditions`). overload_since_ms: time since which demand exceeds planned
    capacity. increase_confirmed_ms, increase_started_ms: last and first proof of the present
    increase. traffic_split: planned routes of the workload types, empty without types.
    """

    req_per_s: float = 0.0
    need_req_per_s: float | None = None
    why: Reason | None = None
    restart_hold: bool = False
    overload_since_ms: int = 0
    increase_confirmed_ms: int = 0
    increase_started_ms: int = 0
    traffic_split: TrafficSplit = field(default_factory=TrafficSplit)

    @property
    def needed_req_per_s(self) -> float:
        """The rate for which capacity is bought, at most the planned demand."""
        need = self.need_req_per_s
        return self.req_per_s if need is None else min(need, self.req_per_s)


@dataclass(frozen=True, slots=True)
class PredictionDrift:
    """How far a model's start times and capacity differ from their predictions.

    start_s: median seconds from launch to ready of the serving instances; equal to the prediction
    if the median is close to it or if too few starts were measured. predicted_s: the prediction for
    these instances, which belong to `combos`. off: whether start time or capacity is far from its
    prediction. worse_since_ms: time since which starts are much slower, or capacity is much lower,
    than predicted.
    """

    start_s: float = 0.0
    predicted_s: float = 0.0
    combos: tuple[str, ...] = ()
    off: bool = False
    worse_since_ms: int = 0

    def __post_init__(self) -> None:
        checks.number("start_s", self.start_s, 0.0, 1e9)
        checks.number("predicted_s", self.predicted_s, 0.0, 1e9)
        if self.start_s and not self.predicted_s:
            raise checks.InvalidValue("start_s", self.start_s, "0 where predicted_s is 0")
        checks.time_ms("worse_since_ms", self.worse_since_ms)
        for combo in self.combos:
            checks.combo("combos", combo)


@dataclass(frozen=True, slots=True)
class LearntRooms:
    """KV caches that the model's engines had at their starts. arguments: the settings for which
    `rooms` hold; since_ms: time since which these are the settings, 0 = since the first start.
    ignored: an impossible report, as text; "" if there is none."""

    arguments: str = ""
    since_ms: int = 0
    rooms: tuple[MeasuredRoom, ...] = ()
    ignored: str = ""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Measured properties of the model's capacity. derate: measured / planned capacity of
    instances. It is below 1 if SLOs were missed at a planned load or engines are slow, and above 1
    (a gain) if measurements prove more; derated_ms: time of its last change. gain_lost_ms: time at
    which misses ended a gain, 0 if none did. predicted, highest: predicted capacity and the upper
    end of its interval, as multiples of the planned one. gpus: GPU types of the planned instances.
    slowdown: measured / predicted time per token, 1 if it is as predicted; slow_since_ms: time
    since which it differs. drift: measured start times and capacity, compared with their
    predictions. lost_ms: time of a capacity loss that is not replaced yet; lost_nodes: the nodes of
    that capacity. settled_ms: time since which all planned instances are ready and no queue drains.
    speed: measured speed of the present version relative to the version for which the interval
    holds.
    """

    derate: float = 1.0
    derated_ms: int = 0
    gain_lost_ms: int = 0
    predicted: float = 1.0
    highest: float = 1.0
    gpus: tuple[str, ...] = ()
    slowdown: float = 1.0
    slow_since_ms: int = 0
    drift: PredictionDrift = field(default_factory=PredictionDrift)
    lost_ms: int = 0
    lost_nodes: tuple[str, ...] = ()
    settled_ms: int = 0
    speed: float = 1.0


@dataclass(frozen=True, slots=True)
class Reversals:
    """The last move ("out", "in", or "" for none) and the times in ms of the reversals of the last
    two hours."""

    last: str = ""
    at_ms: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Hysteresis:
    """Memory that limits scale-in. reversals: recent changes of direction; last_out_ms: time of the
    last addition."""

    reversals: Reversals = field(default_factory=Reversals)
    last_out_ms: int = 0

    def since_addition_s(self, now_ms: int) -> float:
        """Seconds since the last addition; infinite if there was none."""
        return (now_ms - self.last_out_ms) / 1000 if self.last_out_ms else math.inf


@dataclass(frozen=True, slots=True)
class Infeasibility:
    """Demand and constraints that no plan could meet. attempted_req_per_s, retry_at_ms: demand that
    the planner could not serve, and the time until which it is not requested again; has_unserved:
    whether some demand is unserved for this reason. preemption_until_ms: until this time groups
    leave to make room, which only a full plan may use. shortage_noticed_ms, slo_noticed_ms,
    violations_noticed_ms: times of the last notices of a shortage, an unattainable SLO and violated
    constraints; violations_noticed: these constraints.
    """

    attempted_req_per_s: float = 0.0
    retry_at_ms: int = 0
    has_unserved: bool = False
    preemption_until_ms: int = 0
    shortage_noticed_ms: int = 0
    slo_noticed_ms: int = 0
    violations_noticed_ms: int = 0
    violations_noticed: tuple[ReasonCode, ...] = ()


@dataclass(frozen=True, slots=True)
class Advisory:
    """Changes that a person makes or approves. recommended, recommended_ms: last recommended counts
    of combos. proposal: change that waits for approval. unmanaged: last known number of servers
    that Shoal did not start, by combo, None = unknown. unasked: recent additions without an
    approval, as (time in ms, USD/h, instances). accepted_until_ms, accepted_by: time until which
    changes need no approval, and the operator who said so.
    """

    recommended: tuple[tuple[str, int], ...] = ()
    recommended_ms: int = 0
    proposal: PendingApproval | None = None
    unmanaged: tuple[tuple[str, int], ...] | None = None
    unasked: tuple[tuple[int, float, int], ...] = ()
    accepted_until_ms: int = 0
    accepted_by: str = ""


@dataclass(frozen=True, slots=True)
class ModelState:
    """The state of one model: its demand, the planned part of it, the measured capacity, the
    memory that limits removals, requests for capacity, and proposals, the learnt rooms for KV
    cache, and the rollout of its versions."""

    estimate: DemandEstimate
    target: Target = field(default_factory=Target)
    capacity: Capacity = field(default_factory=Capacity)
    hysteresis: Hysteresis = field(default_factory=Hysteresis)
    infeasibility: Infeasibility = field(default_factory=Infeasibility)
    advisory: Advisory = field(default_factory=Advisory)
    learnt: LearntRooms = field(default_factory=LearntRooms)
    rollout: RolloutState = field(default_factory=RolloutState)
