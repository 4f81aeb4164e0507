"""Messages between the control loop and the planner: request and answer, as values that can be sent
through a pipe."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from autoscaler.domain.combo import Combo
from autoscaler.domain.measured_room import MeasuredRoom
from autoscaler.domain.quality_route import Cuts, ScoreMix
from autoscaler.domain.reason import Reason
from autoscaler.domain.validation import InvalidValue, finite, whole
from autoscaler.domain.workload import Demand


class Urgency(StrEnum):
    """The changes that a plan may make. URGENT: additions only, answered within the next two ticks.
    FULL: additions, removals, role switches and moves."""

    URGENT = "urgent"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class RouteTraffic:
    """The current traffic of a service that routes to several models.

    mix: distribution of the requests over score classes. cuts: current or intended thresholds, by
    which the service's requests are already divided among the demands of its models. (): no
    thresholds yet; the demands do not include these requests. recently_moved: the thresholds moved
    recently, so they move again only if necessary.
    """

    name: str
    req_per_s: float
    mix: ScoreMix
    cuts: Cuts = ()
    recently_moved: bool = False


@dataclass(frozen=True, slots=True)
class ChosenSplit:
    """The planned thresholds of the service `name`. quality, usd_per_h: planned mean quality of
    the answers, and planned cost. bound_by: the constraint that prevents cheaper or better
    thresholds."""

    name: str
    cuts: Cuts
    fractions: tuple[float, ...]
    quality: float
    usd_per_h: float
    bound_by: Reason


@dataclass(frozen=True, slots=True)
class RunningGroup:
    """A group of the running fleet. name: its combo id, ":" and a serial number. is_ready: whether
    all its instances serve. neighbours: number of other groups on its nodes. created_ms: time of
    its first assignment. may_switch: whether it may switch roles now. outdated: whether a rollout
    replaces its version."""

    name: str
    combo_id: str
    is_ready: bool = True
    neighbours: int = 0
    created_ms: int = 0
    may_switch: bool = True
    outdated: bool = False


@dataclass(frozen=True, slots=True)
class FleetChange:
    """A change of the running groups. starts: combos to start, with their counts. switches: groups
    that change their roles in place, each with its new combo. leaves: groups to remove. All other
    groups stay."""

    starts: tuple[tuple[str, int], ...] = ()
    switches: tuple[tuple[str, str], ...] = ()
    leaves: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A request for a plan.

    demands: per model, the requests/s to serve (the planner applies utilization). fleet: combo id
    -> target count, including starting instances. groups: the running groups of managed models in
    scope, by name. rented_nodes: usable nodes that are paid for or being launched, per rented pool;
    a missing pool has as many nodes as the fleet needs. unusable_nodes: declared nodes of a pool
    that must not be used (lost, or backing off after failed launches). obtainable: further nodes
    available, per rented pool; a missing pool offers nodes up to its declared maximum.
    leaving_gpus: GPUs per pool, on usable nodes, of instances that are being removed; the GPUs are
    in use until the removal ends. prices_usd_per_h: price per node and hour, for pools whose price
    differs from the declared one. scope: models that may change (empty: all models with a demand).
    floors: current minimum of instances, for models with a scheduled floor. routes: services whose
    thresholds are planned too, if all their models are in the scope of a full request. surge_only:
    new instances must start while all running instances stay, because no instance can leave first.
    removals_only: capacity became superfluous and nothing else changed, so a model whose running
    instances are enough gets no others; exchanges wait for the next plan.
    switchable: combos of `fleet` that may switch roles now, with their counts (None: all may).
    scale_in_locked: models whose capacity may be replaced but not reduced, because the evidence
    does not allow scale-in yet. settling: combos of `fleet` with instances that started recently,
    and how many; if these leave, the plan is charged for it. rooms: by model, KV caches that its
    engines had at their starts. Models and pools that are no longer
    declared are ignored.
    """

    number: int
    urgency: Urgency
    at_ms: int
    demands: tuple[Demand, ...]
    fleet: tuple[tuple[str, int], ...] = ()
    rented_nodes: tuple[tuple[str, int], ...] = ()
    unusable_nodes: tuple[tuple[str, int], ...] = ()
    obtainable: tuple[tuple[str, int], ...] = ()
    leaving_gpus: tuple[tuple[str, int], ...] = ()
    prices_usd_per_h: tuple[tuple[str, float], ...] = ()
    scope: tuple[str, ...] = ()
    floors: tuple[tuple[str, int], ...] = ()
    routes: tuple[RouteTraffic, ...] = ()
    surge_only: bool = False
    removals_only: bool = False
    scale_in_locked: tuple[str, ...] = ()
    switchable: tuple[tuple[str, int], ...] | None = None
    groups: tuple[RunningGroup, ...] = ()
    settling: tuple[tuple[str, int], ...] = ()
    rooms: tuple[tuple[str, tuple[MeasuredRoom, ...]], ...] = ()

    @property
    def keeps_instances(self) -> bool:
        """Whether some instances stay for reasons other than demand and constraints."""
        return bool(self.scale_in_locked or self.settling)

    def __post_init__(self) -> None:
        models = [demand.model for demand in self.demands]
        for model in self.scope:
            if model not in models:
                raise InvalidValue("plan request: scope", model, "models with a demand")
        for pool, usd_per_h in self.prices_usd_per_h:
            finite(f"plan request: price of {pool}", usd_per_h, 0.0, 1e6)
        for model, least in self.floors:
            whole(f"plan request: floor of {model}", least, 0, 100_000)
        for what in ("fleet", "rented_nodes", "unusable_nodes", "obtainable", "leaving_gpus"):
            for name, count in getattr(self, what):
                whole(f"plan request: {what} of {name}", count, 0, 10**6)
        for name, count in self.switchable or ():
            whole(f"plan request: switchable of {name}", count, 0, 10**6)
        for name, count in self.settling:
            whole(f"plan request: settling of {name}", count, 0, 10**6)


class Outcome(StrEnum):
    """The outcome of a request."""

    PLANNED = "planned"
    BEST_EFFORT = "best_effort"  # some demand or constraint cannot be met; the answer names it
    NONE = "none"  # no plan was found in time; the last plan stays in force


@dataclass(frozen=True, slots=True)
class Switch:
    """`count` running combos `source` become combos `target` on the same GPUs, with other roles."""

    source: str
    target: str
    count: int


@dataclass(frozen=True, slots=True)
class PlanAnswer:
    """The answer to request `number`.

    counts: combo id -> count, complete for every model in `scope` (a missing combo has count 0).
    change: the groups that switch and leave, and the combos that start. Groups that leave under an
    urgent answer are still included in `counts`, because they leave once the additions serve.
    cost_usd_per_h: price of the nodes billed after all removals. now_usd_per_h: price of the nodes
    billed now. objective_usd_per_h: cost and penalties; lower_bound_usd_per_h is its lower bound.
    gap: 1 - bound / objective, -1 without proof. shortfall_req_per_s: unserved demand, per model
    with a shortfall. binding: constraints that limit the plan. notes: unmet goals and their causes.
    violations: constraints (survival, spot limits, floors, the budget) that the plan violates.
    shares: combos of each workload type, as (model, type, combo, fraction), in budget mode. combos:
    the current and planned combos of the models in scope, evaluated at the lengths of their
    demands. splits: thresholds chosen with the plan. demands: the demands under these thresholds,
    if they differ from the requested ones. needs_preemption: some instances should be removed
    first, because the additions may find no room while all running instances stay. causes: the
    cause of the change of each model that changes (`planning.change_causes`).
    """

    number: int
    urgency: Urgency
    outcome: Outcome
    scope: tuple[str, ...] = ()
    counts: tuple[tuple[str, int], ...] = ()
    change: FleetChange = FleetChange()
    strategy: str = "shoal"
    cost_usd_per_h: float = 0.0
    now_usd_per_h: float = 0.0
    objective_usd_per_h: float = 0.0
    lower_bound_usd_per_h: float = 0.0
    gap: float = -1.0
    shortfall_req_per_s: tuple[tuple[str, float], ...] = ()
    binding: tuple[Reason, ...] = ()
    notes: tuple[Reason, ...] = ()
    violations: tuple[Reason, ...] = ()
    combos: tuple[Combo, ...] = ()
    splits: tuple[ChosenSplit, ...] = ()
    demands: tuple[Demand, ...] = ()
    shares: tuple[tuple[str, str, str, float], ...] = ()
    needs_preemption: bool = False
    causes: tuple[Reason, ...] = ()


def no_plan_answer(request: PlanRequest, why: Reason) -> PlanAnswer:
    """The answer to a request for which there is no plan. why: the cause."""
    return PlanAnswer(
        request.number, request.urgency, Outcome.NONE, scope=request.scope, notes=(why,)
    )
