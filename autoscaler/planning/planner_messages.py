"""What the control loop asks the planner, and what it gets back: values that go over a pipe.

Owns both forms. Knows nothing of how a plan is made (`planning.answer`) or when one is asked for
(`autoscaler.replan`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from autoscaler.domain.combo import Combo
from autoscaler.domain.quality_route import Cuts, ScoreMix
from autoscaler.domain.reason import Reason
from autoscaler.domain.validation import InvalidValue, finite, whole
from autoscaler.domain.workload import Demand


class Urgency(StrEnum):
    """How much a plan may change. URGENT: additions only, answered within the next tick or two.
    FULL: additions, removals, role switches and moves."""

    URGENT = "urgent"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class RouteAsk:
    """How the requests of a service that stands for several models come now: their rate, and how
    they fall on classes. cuts: where its thresholds are or shall be; the demands of its models
    contain its requests accordingly. (): nowhere yet, and the demands contain none of them.
    rests: they moved a moment ago, and move again only where they must."""

    name: str
    req_per_s: float
    mix: ScoreMix
    cuts: Cuts = ()
    rests: bool = False


@dataclass(frozen=True, slots=True)
class ChosenSplit:
    """Where the thresholds of `name` shall be. quality, usd_per_h: as planned. bound_by: what
    holds it there."""

    name: str
    cuts: Cuts
    fractions: tuple[float, ...]
    quality: float
    usd_per_h: float
    bound_by: Reason


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """One question to the planner.

    demands: per model, requests/s to be able to serve (utilization is applied by the planner).
    fleet: combo id -> how many are wanted now, starting ones included. rented_nodes: usable nodes
    that are paid for or being launched, per rented pool (a pool that is not named: as many as the
    fleet needs). unusable_nodes: declared nodes of a pool that may not be used (lost, or backing
    off after failed launches). obtainable: further nodes that can be had, per rented pool; a pool
    that is not named: up to its declared maximum. leaving_gpus: GPUs per pool, on usable nodes, of
    what is on its way out: they are taken until it is gone. prices_usd_per_h: per node and hour, of
    pools whose price is not the declared one. scope: models that may change (none named: all that
    have a demand). floors: instances that a model must have now, of models whose floor is
    scheduled. routes: whose thresholds are planned too, where all their models are in the scope of
    a full request. beside: what is started must find room beside all that runs, because nothing
    that runs can leave first. switchable: combos of `fleet` that may take other roles now, with how
    many (None: all may). keeps: models that may exchange capacity but give none away, because
    what was seen does not allow it yet. Models and pools that are not declared any more are
    ignored.
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
    routes: tuple[RouteAsk, ...] = ()
    beside: bool = False
    keeps: tuple[str, ...] = ()
    switchable: tuple[tuple[str, int], ...] | None = None

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


class Outcome(StrEnum):
    """What came of a request."""

    PLANNED = "planned"
    BEST_EFFORT = "best_effort"  # some demand or promise cannot be met; the plan says which
    NONE = "none"  # no plan came out, or not in time: the last one stands


@dataclass(frozen=True, slots=True)
class Switch:
    """`count` running combos `source` become combos `target`: same GPUs, other roles."""

    source: str
    target: str
    count: int


@dataclass(frozen=True, slots=True)
class PlanAnswer:
    """The answer to request `number`.

    counts: combo id -> count, complete for every model in `scope` (a combo that is not named is
    not wanted). replaced: of an urgent answer, which keeps all that runs: what its additions make
    superfluous once they serve. switches: of running combos, part of `counts`. cost_usd_per_h: of
    the nodes billed once that is gone; now_usd_per_h: of those billed now. objective_usd_per_h:
    cost and penalties; lower_bound_usd_per_h bounds it. gap: 1 - bound / objective, -1 where
    nothing was proven. shortfall_req_per_s: demand left unserved, per model that has any. binding:
    constraints that hold the plan where it is. notes: what could not be kept. broken: promises
    (survival, limits of spot, floors, the budget) that the plan does not keep. shares: where each
    workload type goes, as (model, type, combo, fraction), where that is planned. combos: those that
    the models in scope run or shall run, valued at the lengths of their demands. splits: thresholds
    chosen with the plan; demands: what was planned for in their consequence, where that is not what
    was asked. makes_room: what is added may find no room beside what runs, and is worth that
    something leaves before it.
    """

    number: int
    urgency: Urgency
    outcome: Outcome
    scope: tuple[str, ...] = ()
    counts: tuple[tuple[str, int], ...] = ()
    replaced: tuple[tuple[str, int], ...] = ()
    switches: tuple[Switch, ...] = ()
    strategy: str = "shoal"
    cost_usd_per_h: float = 0.0
    now_usd_per_h: float = 0.0
    objective_usd_per_h: float = 0.0
    lower_bound_usd_per_h: float = 0.0
    gap: float = -1.0
    shortfall_req_per_s: tuple[tuple[str, float], ...] = ()
    binding: tuple[Reason, ...] = ()
    notes: tuple[Reason, ...] = ()
    broken: tuple[Reason, ...] = ()
    combos: tuple[Combo, ...] = ()
    splits: tuple[ChosenSplit, ...] = ()
    demands: tuple[Demand, ...] = ()
    shares: tuple[tuple[str, str, str, float], ...] = ()
    makes_room: bool = False


def unanswered(request: PlanRequest, why: Reason) -> PlanAnswer:
    """The answer to a request that found none."""
    return PlanAnswer(
        request.number, request.urgency, Outcome.NONE, scope=request.scope, notes=(why,)
    )
