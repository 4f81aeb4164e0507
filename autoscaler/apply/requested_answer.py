"""A planner answer together with its request, by model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from autoscaler.domain.combo import Combo
from autoscaler.domain.reason import Reason, about
from autoscaler.model.tick_fleet import TickFleet
from autoscaler.planning.combo_names import parse_combo_id
from autoscaler.planning.planner_messages import FleetChange, PlanAnswer, Urgency
from autoscaler.rollout.node_limits import planned_nodes
from autoscaler.rollout.serving_group import combo_id_of
from autoscaler.rollout.traffic_split import TrafficSplit, planned_split
from autoscaler.state.controller_state import Pending
from topics.reason_codes import ReasonCode

_NO_CHANGE, _NO_SPLIT = FleetChange(), TrafficSplit()


@dataclass(frozen=True, slots=True)
class RequestedAnswer:
    """A planner answer with the request that it answers. counts: planned combos; asked: combos at
    the time of the request; changes: named groups and combos to start; all by model. shares:
    traffic of each model as (kind, combo, part). short_req_per_s, demand_req_per_s: unserved
    and requested demand. makes_room: whether serving groups may leave before additions start.
    node_limits: nodes per pool after an answer that starts combos; None for no limit."""

    answer: PlanAnswer
    pending: Pending
    counts: Mapping[str, Counter[str]]
    asked: Mapping[str, Counter[str]]
    changes: Mapping[str, FleetChange]
    shares: Mapping[str, list[tuple[str, str, float]]]
    short_req_per_s: Mapping[str, float]
    demand_req_per_s: Mapping[str, float]
    leaving: bool
    makes_room: bool
    node_limits: Mapping[str, int] | None
    is_full: bool = field(init=False)
    """Whether the answer is a full plan."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_full", self.answer.urgency is Urgency.FULL)

    def planned(self, model: str) -> Counter[str]:
        """The planned combos of `model`."""
        return self.counts.get(model, Counter())

    def change(self, model: str) -> FleetChange:
        """The planned change of the groups of `model`."""
        return self.changes.get(model, _NO_CHANGE)

    def cause(self, model: str) -> Reason | None:
        """The cause of the planned change of `model`; None if the plan names none."""
        return next(iter(about(self.answer.causes, model)), None)

    @property
    def trigger(self) -> tuple[Reason, ...]:
        """The reason why a full plan was made. An urgent plan has the cause of its change."""
        if not self.is_full:
            return ()
        return (Reason(ReasonCode.REPLANNED, because=self.pending.reasons),)

    def split(self, model: str) -> TrafficSplit:
        """The planned division of the model's traffic over its combos."""
        shares = self.shares.get(model)
        return planned_split(shares, self.planned(model).items()) if shares else _NO_SPLIT


def requested_answer(answer: PlanAnswer, pending: Pending, fleet: TickFleet) -> RequestedAnswer:
    """`answer` to the request `pending`, prepared for the present fleet."""
    shares: dict[str, list[tuple[str, str, float]]] = {}
    for model, kind, combo, part in answer.shares:
        shares.setdefault(model, []).append((kind, combo, part))
    demands = (*pending.request.demands, *answer.demands)
    leaving = any(group.exit.yields for group in fleet.groups if group.model in answer.scope)
    return RequestedAnswer(
        answer=answer,
        pending=pending,
        counts=_by_model(answer.counts, fleet.combos),
        asked=_by_model(pending.request.fleet, fleet.combos),
        changes=_changes(answer.change),
        shares=shares,
        short_req_per_s=dict.fromkeys(answer.scope, 0.0) | dict(answer.shortfall_req_per_s),
        demand_req_per_s={demand.model: demand.req_per_s for demand in demands},
        leaving=leaving,
        # Groups that make room must have left before others may.
        makes_room=answer.needs_preemption and not leaving,
        node_limits=_node_limits(answer, pending, fleet),
    )


def _node_limits(answer: PlanAnswer, pending: Pending, fleet: TickFleet) -> dict[str, int] | None:
    """Nodes per pool after a full plan; None for an urgent answer, and if nothing starts."""
    if answer.urgency is Urgency.URGENT or not answer.change.starts:
        return None
    counts = Counter(dict(answer.counts))
    for combo_id, count in pending.request.fleet:
        if parse_combo_id(combo_id)[0] not in answer.scope:
            counts[combo_id] += count
    return planned_nodes(counts, fleet.combos, fleet.cluster)


def _by_model(
    named: Iterable[tuple[str, int]], combos: Mapping[str, Combo]
) -> dict[str, Counter[str]]:
    counts: dict[str, Counter[str]] = {}
    for combo_id, count in named:
        known = combos.get(combo_id)
        model = known.model if known is not None else parse_combo_id(combo_id)[0]
        counts.setdefault(model, Counter())[combo_id] += count
    return counts


def _changes(change: FleetChange) -> dict[str, FleetChange]:
    """`change` by model. The names of groups and combos begin with their model."""
    starts: dict[str, list[tuple[str, int]]] = {}
    switches: dict[str, list[tuple[str, str]]] = {}
    leaves: dict[str, list[str]] = {}
    for combo_id, count in change.starts:
        starts.setdefault(parse_combo_id(combo_id)[0], []).append((combo_id, count))
    for name, target in change.switches:
        switches.setdefault(parse_combo_id(target)[0], []).append((name, target))
    for name in change.leaves:
        leaves.setdefault(parse_combo_id(combo_id_of(name))[0], []).append(name)
    return {
        model: FleetChange(
            tuple(starts.get(model, ())),
            tuple(switches.get(model, ())),
            tuple(leaves.get(model, ())),
        )
        for model in {*starts, *switches, *leaves}
    }
