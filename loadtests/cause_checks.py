"""Checks of the causes that decisions name: against the sign of the cost, and against the fleet
before the decision.

`CheckedController` is the production controller in a simulation, with these checks after each tick.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.combo import Combo
from autoscaler.planning.combo_usage import is_spot
from autoscaler.simulation.controller_under_test import ControllerUnderTest
from autoscaler.simulation.decider import DeciderInput, DeciderOutput
from autoscaler.state.controller_state import ControllerState
from topics.decisions import Decision
from topics.reason_codes import ReasonCode as Code

CENT = 0.006
"""USD/h; smaller differences are rounding of costs to cents."""
_TOLERANCE_USD = 0.05
_SLACK = 1.1  # the demand may fall by this factor between the request for a plan and its answer
CHANGES = ("scale_out", "scale_in", "replan", "replace")
SURPLUS = {Code.EXCESS, Code.LOWER_DEMAND, Code.WORTH_ITS_RENT, Code.IDLE}
SAVINGS = {Code.CHEAPER, Code.PRICE, Code.MOVED_TOGETHER}
DEMAND = {
    Code.SURGE, Code.DECLARED, Code.WAKE, Code.BURST, Code.BACKLOG, Code.ROUTED, Code.FORECAST,
    Code.RISING, Code.OVERESTIMATED, Code.SLOW_ENGINES,
}  # fmt: skip
LIMITS = {
    Code.PROMISED_USEFUL_FLOOR, Code.PROMISED_SPOT, Code.PROMISED_SURVIVAL, Code.CEILING,
    Code.POOL_LIMIT, Code.BUDGET,
}  # fmt: skip
OTHERS = {
    Code.CAPACITY_LOST, Code.FLOOR, Code.MAKES_ROOM, Code.SLO_PREDICTED, Code.MORE_WORK,
    Code.PLAN_SAVES, Code.EQUAL_COST, Code.ROLLOUT_WAVE, Code.ROLLOUT_PROPOSED,
    Code.ROLLOUT_TAKEN_BACK,
}  # fmt: skip
_MONEY = re.compile(r"([+-]\d+\.\d\d) USD/h")
_WAITS = re.compile(r"no room yet|no free GPUs yet|\bwaits?\b(?! for \S| until \S|: )")


@dataclass(frozen=True, slots=True)
class Moment:
    """The fleet around a decision. counts: the model's combos that counted as capacity before the
    tick. combos: as evaluated by then. derate: of the model. prices_usd_per_h: of nodes, now. lost:
    whether capacity of the model was lost and not replaced before. floor: instances."""

    cluster: Cluster
    counts: Mapping[str, int]
    combos: Mapping[str, Combo]
    derate: float = 1.0
    lost: bool = False
    floor: int = 0

    @property
    def raw_req_per_s(self) -> float:
        """Capacity of the fleet before the decision."""
        return sum(self.combos[i].req_per_s * n for i, n in self.counts.items() if i in self.combos)


def contradictions(one: Decision, at: Moment) -> Iterator[str]:
    """The statements of the decision that its cost or the fleet contradict."""
    told = one.reason.partition("plan trigger:")[0]
    if _WAITS.search(one.reason):
        yield "a wait names nothing that it waits for"
    if not at.counts and "can serve" in told and one.kind in CHANGES:
        yield "instances serve something although there is none"
    if "no instance is running" in told and at.counts:
        yield "no instance is running although some do"
    if one.kind not in CHANGES or not (one.change or Code.MOVED_TOGETHER in one.codes):
        return
    if one.cause not in SURPLUS | SAVINGS | DEMAND | LIMITS | OTHERS:
        yield f"{one.cause or 'nothing'} is no cause of a change"
    shown = [float(usd) for usd in _MONEY.findall(told)]
    if not any(abs(usd - one.cost_delta_usd_per_h) < CENT for usd in shown):
        yield f"the sentence tells another cost than {one.cost_delta_usd_per_h:+.2f} USD/h"
    yield from _cost(one, told)
    yield from _fleet(one, at)


def _cost(one: Decision, told: str) -> Iterator[str]:
    costs = one.cost_delta_usd_per_h > CENT
    adds = any(count > 0 for _, count in one.change)
    if costs and (one.cause in SURPLUS | SAVINGS or "excess capacity" in told):
        yield f"{one.cause} although the change costs more"
    if adds and one.cause in SURPLUS:
        yield f"{one.cause} although instances are added"
    if not adds and one.cause in DEMAND | {Code.FLOOR, Code.CAPACITY_LOST} and one.change:
        yield f"{one.cause} although nothing is added"
    if one.cause == Code.EQUAL_COST and one.cost_delta_usd_per_h > _TOLERANCE_USD:
        yield "about as cheap although the change costs more"
    if one.cause == Code.PLAN_SAVES:
        saving = re.search(r"would cost (-?[\d.]+) USD/h more", told)
        if saving is None or float(saving[1]) <= 0.0:
            yield "a plan that saves nothing is the cause"


def _fleet(one: Decision, at: Moment) -> Iterator[str]:
    service = at.cluster.service(one.model)
    count = sum(at.counts.values())
    serves = at.raw_req_per_s * service.utilization * at.derate
    if one.cause in DEMAND and serves > one.demand_req_per_s * _SLACK and one.demand_req_per_s:
        yield f"{one.cause}: {serves:.3g} of {one.demand_req_per_s:.3g} req/s are served"
    if one.cause == Code.WAKE and count:
        yield "first requests of a model that runs"
    if one.cause == Code.FLOOR and count >= max(at.floor, service.min_instances):
        yield f"{count} instances keep the floor"
    if one.cause == Code.CAPACITY_LOST and not at.lost:
        yield "no capacity was lost"
    if one.cause == Code.PROMISED_SPOT and (_net(one, at, spot=False) <= 0.0):
        yield "the spot limit, but capacity off spot does not grow"
    if one.cause == Code.CEILING and sum(n for _, n in one.change) >= 0:
        yield "the ceiling, but instances do not become fewer"
    if one.cause == Code.PRICE:
        yield from _price(one, at)
    if one.cause in {Code.MAKES_ROOM, Code.POOL_LIMIT}:
        less = {
            pool
            for combo_id, n in one.change
            if n < 0 and combo_id in at.combos
            for pool in at.combos[combo_id].gpus_by_pool()
        }
        if not any(pool in one.reason for pool in less):
            yield f"{one.cause} of a pool in which nothing leaves"


def _net(one: Decision, at: Moment, spot: bool) -> float:
    return sum(
        at.combos[i].req_per_s * n
        for i, n in one.change
        if i in at.combos and is_spot(at.combos[i]) is spot
    )


def _price(one: Decision, at: Moment) -> Iterator[str]:
    found = re.search(r"(\S+) now ([\d.]+) USD/h \(was ([\d.]+)\)", one.reason)
    if found is None:
        yield "a price that is not named"
        return
    pool, now, before = found[1], float(found[2]), float(found[3])
    gpus = sum(
        at.combos[i].gpus_by_pool().get(pool, 0) * n for i, n in one.change if i in at.combos
    )
    if gpus * (now - before) >= 0.0:
        yield f"{pool} changed its price, but the change moves the other way"


@dataclass
class Findings:
    """decisions: number of decisions; changes: of those that change something; by_cause: changes by
    cause; wrong: (contradiction, decision)."""

    decisions: int = 0
    changes: int = 0
    by_cause: Counter[str] = field(default_factory=Counter)
    wrong: list[tuple[str, Decision]] = field(default_factory=list)

    def check(self, one: Decision, at: Moment) -> None:
        """Count the decision and keep its contradictions."""
        self.decisions += 1
        if one.kind in CHANGES and one.change:
            self.changes += 1
            self.by_cause[one.cause] += 1
        self.wrong += [(text, one) for text in contradictions(one, at)]


class CheckedController(ControllerUnderTest):
    """The production controller, whose decisions are checked."""

    def __init__(self) -> None:
        super().__init__()
        self.findings = Findings()

    def decide(self, inputs: DeciderInput, now_ms: int) -> DeciderOutput:
        """One tick, and the checks of its decisions."""
        before = self.state
        output = super().decide(inputs, now_ms)
        after = self.state
        assert after is not None
        for one in output.decisions:
            if one.model != "*":
                self.findings.check(one, moment(one.model, inputs.cluster, before, after))
        return output


def moment(
    model: str, cluster: Cluster, before: ControllerState | None, after: ControllerState
) -> Moment:
    """The fleet of `model` before a tick. before: None at the first tick."""
    stays = {group.name for group in after.groups}
    replaced = {group.switch.source for group in after.groups if group.switch}
    groups = [g for g in (before.groups if before else ()) if g.model == model and g.counts]
    # A group that vanished in the tick was lost or failed before its decisions.
    known = Counter(g.combo_id for g in groups if g.name in stays or g.name in replaced)
    state = after.models.get(model)
    earlier = before.models.get(model) if before else None
    lost = len(groups) > sum(known.values()) or any(
        one is not None and one.capacity.lost_ms > 0 for one in (state, earlier)
    )
    derate = state.capacity.derate if state is not None else 1.0
    return Moment(cluster, known, after.evaluated.combos, derate, lost)
