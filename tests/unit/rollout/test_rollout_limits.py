"""Limits of placement, waves and views of groups: budgets, time-outs, floors, failed starts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from autoscaler.domain.cluster import Cluster, Market, Objective, Policy
from autoscaler.domain.node_names import node_ids
from autoscaler.domain.workload import Phase
from autoscaler.estimate.windows import GatewayReport
from autoscaler.rollout.assignments import slots
from autoscaler.rollout.diff import FreeCapacity, revived, spare_usd_per_h, start
from autoscaler.rollout.drain_confirmation import CONFIRM_TIMEOUT_MS, confirmed
from autoscaler.rollout.fleet_snapshot import snapshot
from autoscaler.rollout.launch_failures import detect_faults
from autoscaler.rollout.serving_group import (
    FORGOTTEN_MS,
    Life,
    Placed,
    RouteExit,
    ServingGroup,
    Switch,
    combo_id_of,
    fleet_view,
    observe_group,
    ready_req_per_s,
    serial_of,
)
from autoscaler.rollout.unassigned_instances import unassigned_instances
from autoscaler.sizing.scale_in.reversals import after_move, scale_in_within_limit
from autoscaler.state.model_state import Reversals
from tests.unit.decide.decide_catalogue import (
    AGGREGATED,
    BUCKET,
    DECODE,
    PREFILL,
    combo,
    pool,
    service,
    simple,
)
from topics.checks import MAX_RESTORED_COUNT
from topics.fleet import Assignment, DesiredInstance, InstanceState, ObservedInstance, Status
from topics.reason_codes import ReasonCode

NOW = 1_700_000_000_000
RENTED = pool(nodes=4)
OWNED = pool("own", nodes=2, market=Market.OWNED)
ONE, OWN = simple("chat", RENTED)[0], simple("chat", OWNED)[0]
WHOLE = combo("chat", [(AGGREGATED, 4, RENTED, 1, 40.0)])
READY, FAILED = InstanceState.READY, InstanceState.FAILED


def site(**changes: Any) -> FreeCapacity:
    """Room for groups on four rented nodes of four GPUs at 8 USD/h, and two owned nodes."""
    made = FreeCapacity(Cluster((RENTED, OWNED), ()), {}, {}, (), 7)
    return replace(made, **changes)


def started(adds: dict[str, int], where: FreeCapacity) -> Any:
    combos = {one.id: one for one in (ONE, OWN, WHOLE)}
    return start(adds, combos, service(), where, NOW)


def test_larger_combos_are_placed_first_and_fill_nodes() -> None:
    found = started({ONE.id: 4, WHOLE.id: 1}, site())
    assert [g.combo_id for g in found.groups] == [WHOLE.id, *[ONE.id] * 4]
    assert [g.name for g in found.groups][:2] == [f"{WHOLE.id}:7", f"{ONE.id}:8"]
    nodes = [{placed.node for placed in g.placed} for g in found.groups]
    assert len(set.union(*nodes)) == 2 and not nodes[0] & set.union(*nodes[1:])
    assert (found.site.serial, found.unplaced.total()) == (12, 0)
    assert {g.created_ms for g in found.groups} == {g.since_ms for g in found.groups} == {NOW}


@pytest.mark.parametrize(("nodes", "placed"), [(0, 0), (1, 1), (2, 2)])
def test_each_new_node_reduces_the_obtainable_ones(nodes: int, placed: int) -> None:
    found = started({WHOLE.id: 3}, site(obtainable={RENTED.id: nodes}))
    assert len(found.groups) == placed
    assert found.unplaced == {WHOLE.id: 3 - placed}
    assert found.site.obtainable == {RENTED.id: 0}


def test_groups_on_a_node_that_is_rented_need_no_further_one() -> None:
    found = started({ONE.id: 5}, site(obtainable={RENTED.id: 1}))
    assert len(found.groups) == 4 and found.unplaced == {ONE.id: 1}


@pytest.mark.parametrize(
    ("spare", "placed", "left"), [(7.99, 0, 7.99), (8.0, 1, 0.0), (23.0, 2, 7.0), (24.0, 3, 0.0)]
)
def test_new_nodes_stay_within_the_budget(spare: float, placed: int, left: float) -> None:
    found = started({WHOLE.id: 3}, site(spare_usd_per_h=spare))
    assert len(found.groups) == placed
    assert found.site.spare_usd_per_h == pytest.approx(left)


def test_owned_nodes_need_no_budget() -> None:
    found = started({OWN.id: 8}, site(spare_usd_per_h=0.0))
    assert len(found.groups) == 8 and found.site.spare_usd_per_h == 0.0


def test_the_spare_budget_is_left_after_rented_nodes_on_the_bill() -> None:
    cluster = Cluster((RENTED, OWNED), (), Policy(budget_usd_per_h=20.0))
    nodes = node_ids(RENTED)
    assert spare_usd_per_h(cluster, {*nodes[:2], *node_ids(OWNED)}) == 4.0
    assert spare_usd_per_h(cluster, nodes[:3]) == 0.0
    assert spare_usd_per_h(Cluster((RENTED,), ()), nodes) == math.inf
    assert cluster.policy.objective is Objective.COST


def group(serial: int = 1, **changes: Any) -> ServingGroup:
    placed = (Placed(f"i{serial}", Phase.AGGREGATED, f"n{serial}", RENTED.id, (0,)),)
    made = ServingGroup(f"{ONE.id}:{serial}", "chat", ONE.id, "", placed, NOW - 1000)
    return replace(made, **changes)


def test_removals_are_cancelled_until_the_drain() -> None:
    kinds = (
        group(1),
        group(2, life=Life.RETIRING),
        group(3, life=Life.UNROUTED),
        group(4, life=Life.DRAINING),
        group(5, life=Life.RETIRING, failed_ms=NOW),
        group(6, life=Life.RETIRING, exit=RouteExit(yields=True)),
    )
    back = revived(kinds, NOW + 5)
    assert [serial_of(one.name) for one in back] == [2, 3]
    assert {(one.life, one.since_ms) for one in back} == {(Life.ACTIVE, NOW + 5)}


def status(*instances: ObservedInstance, age_ms: int = 0, **changes: Any) -> Status:
    made = Status("n1", RENTED.id, "x", 3, NOW - age_ms, instances)
    return replace(made, **changes)


def report(state: InstanceState = READY, **changes: Any) -> ObservedInstance:
    listens = {"endpoint": "h:1"} if state is READY else {}
    made = ObservedInstance("i1", "chat", "aggregated", "g", state, (0,), **listens)
    return replace(made, **changes)


def observed(one: ServingGroup, *instances: ObservedInstance, age_ms: int = 0) -> Any:
    fleet = fleet_view({"n1": status(*instances, age_ms=age_ms)})
    return observe_group(one, fleet, NOW, 60_000, 15_000)


def test_a_group_serves_if_its_instance_is_ready_in_its_phase_with_an_address() -> None:
    view = observed(group(), report())
    assert view.all_ready and [at for _, at in view.ready] == ["h:1"] and view.broken is None
    for other in (report(InstanceState.STARTING), report(phase="decode"), report(endpoint="")):
        view = observed(group(), other)
        assert not view.all_ready and view.ready == ()


@pytest.mark.parametrize(("waited_ms", "late"), [(60_000, False), (60_001, True)])
def test_a_start_times_out(waited_ms: int, late: bool) -> None:
    """The time counts from the assignment, or from the present state of the instance."""
    old = group(created_ms=NOW - waited_ms)
    for instances in ((), (report(InstanceState.STARTING, since_ms=NOW - waited_ms),)):
        view = observed(old, *instances)
        assert (view.broken is not None) is late
        if late:
            assert (view.broken.code, view.broken.quantities) == (ReasonCode.NOT_READY, (60.0,))
            assert (view.broken_node, view.broken_pool) == ("n1", RENTED.id)
    fresh = report(InstanceState.STARTING, since_ms=NOW - 100)
    assert observed(old, fresh).broken is None


def test_a_switch_times_out_from_its_own_begin() -> None:
    old = group(created_ms=NOW - 600_000, since_ms=NOW - 60_000)
    switching = replace(old, switch=Switch(old.name, old.placed))
    assert observed(switching).broken is None
    assert observed(replace(switching, since_ms=NOW - 60_001)).broken is not None


def test_a_failed_instance_breaks_its_group_with_the_engines_reason() -> None:
    two = group(
        placed=(*group().placed, Placed("i2", Phase.AGGREGATED, "n1", RENTED.id, (1,))),
        created_ms=NOW - 90_000,
    )
    broken = report(FAILED, reason="no CUDA device", pool_full=True)
    view = observed(two, broken, report(instance="i2"))
    assert view.broken.quoted == "no CUDA device" and view.broken.subject == "i1"
    assert (view.broken_node, view.broken_pool, view.pool_full) == ("n1", RENTED.id, True)
    assert len(view.ready) == 1 and not view.all_ready
    assert observed(two, broken).broken.code is ReasonCode.START_FAILED, "the cause, not a time-out"


@pytest.mark.parametrize(
    ("age_ms", "created_ms", "lost"),
    [
        (15_000, NOW - 60_000, False),
        (15_001, NOW - 60_000, True),
        (FORGOTTEN_MS + 60_000, NOW - 60_000, True),
        (FORGOTTEN_MS + 60_001, NOW - 60_000, False),
    ],
)
def test_a_group_is_lost_with_its_node_unless_it_was_placed_after_its_end(
    age_ms: int, created_ms: int, lost: bool
) -> None:
    """A new node may have the name of a node that was given up."""
    view = observe_group(
        group(created_ms=created_ms),
        fleet_view({"n1": status(report(), age_ms=age_ms)}),
        NOW,
        10**9,
        15_000,
    )
    assert view.lost is lost


def test_names_of_groups_carry_combo_and_serial() -> None:
    assert combo_id_of("chat:a1@us/p/owned:12") == "chat:a1@us/p/owned"
    assert serial_of("chat:a1@us/p/owned:12") == 12
    for bad in ("chat", "chat:x", "chat:-1", "chat:²", f"chat:{MAX_RESTORED_COUNT + 1}"):
        assert serial_of(bad) == 0
    assert serial_of(f"chat:{MAX_RESTORED_COUNT}") == MAX_RESTORED_COUNT
    assert serial_of("chat:" + "9" * 50) == 0


PAIR = combo("chat", [(PREFILL, 1, RENTED, 2, 10.0), (DECODE, 2, RENTED, 1, 15.0)])


def test_the_slowest_phase_limits_the_ready_part() -> None:
    prefills = [Placed(f"p{k}", Phase.PREFILL, "n1", RENTED.id, (k,)) for k in range(2)]
    decode = Placed("d", Phase.DECODE, "n1", RENTED.id, (2, 3))
    base = observed(group())

    def rate(*placed: Placed) -> float:
        return ready_req_per_s(PAIR, replace(base, ready=tuple((one, "h:1") for one in placed)))

    assert rate(*prefills, decode) == 15.0
    assert rate(prefills[0], decode) == 10.0
    assert rate(*prefills) == rate(decode) == rate() == 0.0
    assert rate(replace(decode, gpus=(2,)), *prefills) == 0.0, "of another size"


def test_slots_hold_two_batches_of_requests_at_capacity() -> None:
    """By Little's law; prefill instances hold requests until the first token only, and decode
    instances take every prefilled request."""
    one = Placed("i", Phase.AGGREGATED, "n1", RENTED.id, (0,))
    held = 10.0 * (0.3 + 0.02 * 200.0)
    assert slots(ONE, one, BUCKET) == math.ceil(2.0 * held) + 4 == 90
    assert slots(replace(ONE, output_tokens=100.0), one, BUCKET) == 50
    prefill = Placed("p", Phase.PREFILL, "n1", RENTED.id, (0,))
    assert slots(PAIR, prefill, BUCKET) == math.ceil(2.0 * 10.0 * 0.3) + 4
    decode = Placed("d", Phase.DECODE, "n1", RENTED.id, (2, 3))
    assert slots(PAIR, decode, BUCKET) == math.ceil(15.0 * 0.02 * 200.0)
    assert slots(PAIR, one, BUCKET) == 0
    huge = simple("chat", RENTED, rate=1e9)[0]
    assert slots(huge, one, BUCKET) == 1_000_000


@pytest.mark.parametrize(
    ("generation", "heard", "waited_ms", "done"),
    [
        (5, (5, 6), 0, True),
        (5, (5, 4), 0, False),
        (0, (5, 5), 0, False),
        (5, (), 0, False),
        (0, (), CONFIRM_TIMEOUT_MS, True),
        (0, (), CONFIRM_TIMEOUT_MS - 1, False),
    ],
)
def test_a_drain_begins_once_all_gateways_apply_the_routes(
    generation: int, heard: tuple[int, ...], waited_ms: int, done: bool
) -> None:
    gateways = [GatewayReport(str(k), "b", NOW, 0, 0, one) for k, one in enumerate(heard)]
    gateways = [replace(one, route_generation=heard[k]) for k, one in enumerate(gateways)]
    leaving = group(since_ms=NOW - waited_ms, exit=RouteExit(generation=generation))
    assert confirmed(leaving, gateways, NOW) is done


def test_a_report_from_before_the_drain_confirms_nothing() -> None:
    """It may name routes of a former broker, whose generations were higher."""
    leaving = group(since_ms=NOW - 500, exit=RouteExit(generation=5))
    for reported_ms, done in ((NOW - 501, False), (NOW - 500, True)):
        assert confirmed(leaving, [GatewayReport("g", "b", reported_ms, 0, 9)], NOW) is done


def test_reversals_are_counted_for_two_hours() -> None:
    hour_ms = 3_600_000
    turns = after_move(Reversals(), "out", NOW)
    assert turns == Reversals("out", ())
    turns = after_move(turns, "in", NOW + 1)
    assert turns == Reversals("in", (NOW + 1,))
    assert after_move(turns, "in", NOW + 2) == turns
    back = after_move(turns, "out", NOW + 2)
    assert back == Reversals("out", (NOW + 1, NOW + 2))
    assert after_move(back, "out", NOW + 2 * hour_ms + 1).at_ms == (NOW + 2,)
    assert scale_in_within_limit(back, NOW + 3, most_per_h=2)
    assert not scale_in_within_limit(back, NOW + 3, most_per_h=1)
    assert scale_in_within_limit(turns, NOW + 3, most_per_h=1)


def faults(one: ServingGroup, *statuses: Status, acts: bool = True, now_ms: int = NOW) -> Any:
    cluster = Cluster((RENTED,), ())
    sight = snapshot((one,), {s.node: s for s in statuses}, {ONE.id: ONE}, cluster, now_ms, 0)
    return detect_faults((one,), sight, {}, () if acts else (one.model,), now_ms)


def test_a_broken_group_retires_and_its_node_rests() -> None:
    broken = status(report(FAILED, reason="no CUDA device"), launch_basis="slots")
    found = faults(group(), broken)
    (one,) = found.groups
    assert (one.life, one.failed_ms) == (Life.RETIRING, NOW)
    (failure,) = found.failures
    assert (failure.node, failure.pool, failure.wait_s) == ("n1", RENTED.id, 120.0)
    assert found.backoff["n1"].launch_basis == "slots" and not found.backoff["n1"].pool_full
    assert faults(group(), broken, acts=False).failures == ()
    assert faults(group(failed_ms=NOW - 1), broken).failures == (), "counted once"
    assert faults(group(life=Life.DRAINING), broken).failures == ()


def test_a_group_on_a_reclaimed_node_makes_room_at_once() -> None:
    found = faults(group(), status(report(), reclaim_ms=NOW + 60_000))
    (one,) = found.groups
    assert one.life is Life.RETIRING and one.exit.yields and found.lost == (group(),)
    advised = faults(group(), status(report(), reclaim_ms=NOW + 60_000), acts=False)
    assert advised.groups == (group(),) and advised.lost == ()


def test_a_group_is_dropped_after_the_long_silence_of_its_node() -> None:
    early = group(created_ms=NOW - 3_600_000)
    silent = status(report(), age_ms=FORGOTTEN_MS)
    assert faults(early, silent).groups == faults(early, silent).lost == (early,)
    gone = status(report(), age_ms=FORGOTTEN_MS + 1)
    assert faults(early, gone).groups == () == faults(early, gone).lost
    assert faults(early, gone, acts=False).groups == (early,)


def test_instances_outside_of_the_applied_assignment_are_found() -> None:
    wish = DesiredInstance("i1", "chat", "aggregated", "g", (0,))
    running = status(report(), report(instance="i2", gpus=(1,)))
    assigned = {"n1": Assignment("n1", RENTED.id, 3, 1, 0, (wish,))}
    assert unassigned_instances([running], assigned) == {"i2": ("chat", "n1")}
    newer = {"n1": Assignment("n1", RENTED.id, 4, 1, 0, (wish,))}
    assert unassigned_instances([running], newer) == {}, "its executor has not read it yet"
    assert unassigned_instances([running], {}) == {}
    ending = status(report(InstanceState.DRAINING, instance="i2"))
    assert unassigned_instances([ending], assigned) == {}
    other = replace(running, node="n0")
    assert unassigned_instances([other, running], assigned) == {"i2": ("chat", "n1")}
