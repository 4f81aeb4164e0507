"""The rollout of any planner answer on any small fleet.

No GPU is assigned twice, no capacity is lost without need, and a repetition changes nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from hypothesis import event, given, settings
from hypothesis import strategies as st

from autoscaler.apply.fleet_changes import AppliedPlan
from autoscaler.apply.plan_answer import apply_answer
from autoscaler.domain.cluster import Cluster, Market, Mode, Policy, Pool, Service
from autoscaler.domain.combo import Combo, ComboMember
from autoscaler.domain.reason import Reason
from autoscaler.domain.workload import Demand, Lengths, Phase, Slo
from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.estimate.windows import Stats
from autoscaler.model.tick_fleet import TickFleet, TickInputs
from autoscaler.performance import catalog
from autoscaler.planning.combo_names import combo_id
from autoscaler.planning.planner_messages import Outcome, PlanAnswer, PlanRequest, Urgency
from autoscaler.rollout.bin_packing import used_gpus
from autoscaler.rollout.capacity_and_cost import raw_req_per_s
from autoscaler.rollout.diff import FreeCapacity, start
from autoscaler.rollout.fleet_snapshot import FleetSnapshot
from autoscaler.rollout.serving_group import FleetView, GroupView, Life, ServingGroup
from autoscaler.state.controller_state import ControllerState, Observation, Pending, Term
from autoscaler.state.model_state import DemandEstimate, ModelState, Target
from autoscaler.state.model_view import ModelView, ObservedServing
from topics.reason_codes import ReasonCode

GPU = catalog.gpu("L40S")
POOLS = (
    Pool("us", "near", GPU, 4, 2, Market.ON_DEMAND, 8.0),
    Pool("us", "own", GPU, 2, 2, Market.OWNED, 0.0),
)
LENGTHS = Lengths(1000.0, 200.0)
NOW = 10_000_000
KINDS = ((1, 0, 3.0), (2, 0, 7.0), (4, 0, 15.0), (1, 1, 4.0))


def kinds(model: str) -> tuple[Combo, ...]:
    made = []
    for gpus, where, rate in KINDS:
        pool = POOLS[where]
        made.append(
            Combo(
                combo_id(model, [(Phase.AGGREGATED, gpus, pool.id, 1)]),
                model,
                "us",
                (ComboMember(Phase.AGGREGATED, pool.id, gpus, 1, rate),),
                rate,
                gpus * pool.price_usd_per_h / pool.per_node,
                300.0,
                20.0,
                60.0,
            )
        )
    return tuple(made)


MODELS = ("chat", "code")
COMBOS = {one.id: one for model in MODELS for one in kinds(model)}


def service(model: str, priority: int) -> Service:
    return Service(
        model,
        catalog.model("meta-llama/Llama-3.1-8B"),
        Slo(1000.0, 50.0),
        priority=priority,
        mode=Mode.ACT,
        lengths=LENGTHS,
        max_disruption=0.3,
    )


@dataclass(frozen=True)
class Case:
    """A serving fleet, its targets, and an answer that may be for another fleet."""

    cluster: Cluster
    groups: tuple[ServingGroup, ...]
    targets: dict[str, float]
    answer: PlanAnswer
    pending: Pending

    def fleet_of(self, groups: tuple[ServingGroup, ...], now_ms: int = NOW) -> TickFleet:
        ups = {g.name: GroupView(((g.placed[0], "h:1"),), True, "", False) for g in groups}
        sight = FleetSnapshot(
            FleetView({}, {}), ups, frozenset(), frozenset(), frozenset(), frozenset()
        )
        views = {}
        for one in self.cluster.services:
            own = [g for g in groups if g.model == one.model and g.counts]
            seen = Stats(120, 0, 600, 600, 0, 0, 600, 5.0, None, None, None, None)
            views[one.model] = ModelView(
                serving=ObservedServing(
                    ready=tuple(COMBOS[g.combo_id] for g in own),
                    nothing_starting=True,
                    counting=tuple(own),
                ),
                service=one,
                policy=self.cluster.policy,
                now_ms=now_ms,
                started_ms=0,
                state=ModelState(
                    DemandEstimate(LENGTHS), target=Target(req_per_s=self.targets[one.model])
                ),
                demand=ModelDemand(local=seen),
                groups=len(own),
                raw_req_per_s=raw_req_per_s(own, COMBOS),
            )
        state = ControllerState(Term(now_ms))
        inputs = TickInputs(now_ms, state, Observation(), self.cluster, self.cluster, COMBOS)
        states = {model: view.state for model, view in views.items()}
        return TickFleet(inputs, groups, states, views, sight)

    def carry(self, groups: tuple[ServingGroup, ...], pending: Pending) -> AppliedPlan:
        site = FreeCapacity(self.cluster, used_gpus(groups), {}, (), 1000)
        return apply_answer(self.answer, pending, self.fleet_of(groups), site)


counts = st.dictionaries(st.sampled_from(sorted(COMBOS)), st.integers(0, 3), max_size=5)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    services = tuple(service(model, draw(st.integers(0, 2))) for model in MODELS)
    cluster = Cluster(POOLS, services, Policy())
    site = FreeCapacity(cluster, {}, {}, (), 1)
    groups: tuple[ServingGroup, ...] = ()
    for one in services:
        mine = {i: n for i, n in draw(counts).items() if COMBOS[i].model == one.model}
        begun = start(mine, COMBOS, one, site, 0)
        groups, site = groups + begun.groups, begun.site
    running = Counter(group.combo_id for group in groups)
    same = draw(st.integers(0, 4)) > 0
    fleet = dict(running) if same else draw(counts)
    urgency = draw(st.sampled_from(list(Urgency)))
    wanted = draw(counts)
    if urgency is Urgency.URGENT:
        wanted = dict(Counter(fleet) + Counter(wanted))
    targets = {model: draw(st.floats(0.0, 12.0)) for model in MODELS}
    short = tuple((m, 1.0) for m in MODELS if draw(st.integers(0, 3)) == 0)
    demands = tuple(Demand(model, rate, LENGTHS) for model, rate in targets.items())
    request = PlanRequest(
        1, urgency, NOW - 1000, demands, fleet=tuple(sorted(fleet.items())), scope=MODELS
    )
    answer = PlanAnswer(
        1,
        urgency,
        Outcome.BEST_EFFORT if short else Outcome.PLANNED,
        scope=MODELS,
        counts=tuple(sorted(wanted.items())),
        shortfall_req_per_s=short,
        combos=tuple(COMBOS.values()),
    )
    return Case(
        cluster, groups, targets, answer, Pending(request, (Reason(ReasonCode.PERIOD, "*"),))
    )


def of(
    groups: tuple[ServingGroup, ...], model: str, *, counting: bool = True
) -> list[ServingGroup]:
    return [g for g in groups if g.model == model and g.counts is counting]


@settings(max_examples=600, deadline=None)
@given(cases())
def test_no_gpu_is_assigned_twice_and_all_nodes_exist(case: Case) -> None:
    """Draining instances still occupy their GPUs, so a start uses only free ones."""
    after = case.carry(case.groups, case.pending)
    held = [(p.node, gpu) for g in after.groups for p in g.placed for gpu in p.gpus]
    assert len(held) == len(set(held))
    assert {g.name for g in case.groups} <= {g.name for g in after.groups}
    started = len(after.groups) - len(case.groups)
    event(f"starts: {min(started, 3)}")


@settings(max_examples=600, deadline=None)
@given(cases())
def test_no_needed_group_retires_unless_the_plan_states_it(case: Case) -> None:
    """An urgent answer retires no group. A full answer retires only groups that it omits. It stays
    above the target, unless it states a shortfall or must free nodes first.
    """
    after = case.carry(case.groups, case.pending)
    wanted = Counter(dict(case.answer.counts))
    shortfall = dict(case.answer.shortfall_req_per_s)
    no_room = {
        trigger.why.subject
        for trigger in after.replan
        if any(why.code is ReasonCode.NO_ROOM for why in trigger.why.because)
    }
    for model in MODELS:
        before = Counter(g.combo_id for g in of(case.groups, model))
        left = Counter(g.combo_id for g in of(after.groups, model))
        gone = Counter(g.combo_id for g in of(after.groups, model, counting=False))
        event(f"retires: {bool(gone)}")
        assert case.answer.urgency is Urgency.FULL or not gone
        assert all(n <= before[i] - wanted[i] for i, n in gone.items())
        if gone and model not in shortfall and model not in no_room:
            held = sum(COMBOS[i].req_per_s * n for i, n in left.items())
            share = case.cluster.service(model).utilization
            assert held * share >= case.targets[model] * (1 - 1e-5)


@settings(max_examples=600, deadline=None)
@given(cases())
def test_the_same_plan_applied_again_changes_nothing(case: Case) -> None:
    """The same plan is requested for the resulting fleet. If the first one was applied in full, no
    group starts or retires.
    """
    first = case.carry(case.groups, case.pending)
    fleet = Counter(g.combo_id for g in first.groups if g.counts)
    if first.replan or fleet != +Counter(dict(case.answer.counts)):
        event("left something out")
        return
    request = replace(case.pending.request, fleet=tuple(sorted(fleet.items())))
    again = case.carry(first.groups, replace(case.pending, request=request))
    assert again.groups == first.groups
    assert [d for d in again.decisions if d.change] == [] and again.replan == ()
    assert all(g.life in (Life.ACTIVE, Life.RETIRING) for g in again.groups)
