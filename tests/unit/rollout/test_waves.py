"""Waves: the steps by which a retiring group ends."""

from __future__ import annotations

from dataclasses import replace

from autoscaler.domain.workload import Phase
from autoscaler.estimate.windows import GatewayReport
from autoscaler.rollout.drain_confirmation import CONFIRM_TIMEOUT_MS
from autoscaler.rollout.serving_group import (
    FleetView,
    GroupView,
    Life,
    Placed,
    RouteExit,
    ServingGroup,
    Switch,
)
from autoscaler.rollout.waves import (
    GONE_GRACE_MS,
    RemovalLimits,
    WaveInputs,
    retire,
    step,
)
from topics.fleet import Assignment, DesiredInstance, InstanceState, ObservedInstance, Status

NOW = 1_000_000
LIMITS = {"floor", "max_disruption", "proven_req_per_s"}


def group(serial: int, **changes: object) -> ServingGroup:
    placed = (Placed(f"chat-{serial}-a0", Phase.AGGREGATED, "n", "us/p/owned", (serial,)),)
    made = ServingGroup(
        f"chat:a1@us/p/owned:{serial}", "chat", "chat:a1@us/p/owned", "e", placed, 0
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def inputs(
    groups: list[ServingGroup], ready: set[int], demand: float, **changes: object
) -> WaveInputs:
    """Inputs of a step. ready: serials of the serving groups, each with 10 requests/s. changes: of
    the inputs or of their limits."""
    views, rates = {}, {}
    for serial, one in enumerate(groups, start=1):
        up = serial in ready
        views[one.name] = GroupView(((one.placed[0], "h:1"),) if up else (), up, "", False)
        rates[one.name] = 10.0 if up else 0.0
    limited = {name: changes.pop(name) for name in LIMITS & changes.keys()}
    limits = RemovalLimits(demand, **limited)  # type: ignore[arg-type]
    made = WaveInputs(NOW, limits, rates, views, (), FleetView({}, {}), {}, 120_000)
    return replace(made, **changes)  # type: ignore[arg-type]


def lives(groups: tuple[ServingGroup, ...]) -> list[Life]:
    return [one.life for one in sorted(groups, key=lambda g: g.name)]


def test_a_retiring_group_leaves_the_routes_when_the_rest_covers_demand() -> None:
    """Two groups serve 10 each. At a demand of 9 one may leave; at 11 both stay."""
    groups = [group(1), retire(group(2), NOW)]
    assert lives(step(groups, inputs(groups, {1, 2}, 9.0))) == [Life.ACTIVE, Life.UNROUTED]
    assert lives(step(groups, inputs(groups, {1, 2}, 11.0))) == [Life.ACTIVE, Life.RETIRING]


def test_two_retiring_groups_do_not_rely_on_each_other() -> None:
    """Three groups serve 10 each, two of them retire, and the demand is 15. Only one leaves in this
    step.
    """
    groups = [group(1), retire(group(2), NOW), retire(group(3), NOW)]
    found = lives(step(groups, inputs(groups, {1, 2, 3}, 15.0)))
    assert sorted(found) == sorted([Life.ACTIVE, Life.UNROUTED, Life.RETIRING])


def test_a_group_waits_for_its_replacement_even_with_enough_capacity() -> None:
    """The group in `after` must be ready first."""
    new = group(1)
    groups = [new, group(2), retire(group(3), NOW, after=(new.name,))]
    assert lives(step(groups, inputs(groups, {2, 3}, 1.0)))[2] is Life.RETIRING
    assert lives(step(groups, inputs(groups, {1, 2, 3}, 1.0)))[2] is Life.UNROUTED


def test_a_failed_replacement_cancels_the_removal() -> None:
    """If the replacement failed or is gone, the old group is desired again."""
    broken = group(1, failed_ms=NOW)
    groups = [broken, group(2), retire(group(3), NOW, after=(broken.name,))]
    assert lives(step(groups, inputs(groups, {2, 3}, 1.0)))[2] is Life.ACTIVE
    lone = [group(2), retire(group(3), NOW, after=("chat:a1@us/p/owned:9",))]
    assert lives(step(lone, inputs(lone, {1, 2}, 1.0)))[1] is Life.ACTIVE


def test_the_minimum_counts_complete_ready_groups() -> None:
    """Without demand and with a minimum of 2, no step may leave fewer than two groups."""
    groups = [group(1), retire(group(2), NOW)]
    assert lives(step(groups, inputs(groups, {1, 2}, 0.0, floor=2)))[1] is Life.RETIRING
    assert lives(step(groups, inputs(groups, {1, 2}, 0.0, floor=1)))[1] is Life.UNROUTED


def test_a_group_that_never_served_drains_at_once() -> None:
    """It has no ready instance and no route."""
    groups = [group(1), retire(group(2), NOW)]
    assert lives(step(groups, inputs(groups, {1}, 99.0)))[1] is Life.DRAINING


def test_a_drain_waits_for_every_live_gateway_or_a_time_out() -> None:
    """Routes of generation 5 omit the group. Both gateways must have generation 5, or 15 s must
    pass.
    """
    gone = group(2, life=Life.UNROUTED, since_ms=NOW - 1000, exit=RouteExit(generation=5))
    groups = [group(1), gone]

    def after(*generations: int, waited_ms: int = 1000) -> Life:
        seen = tuple(GatewayReport(f"g{k}", "b", NOW, 0, g) for k, g in enumerate(generations))
        current = [groups[0], replace(gone, since_ms=NOW - waited_ms)]
        return lives(step(current, inputs(current, {1, 2}, 1.0, gateways=seen)))[1]

    assert after(5, 4) is Life.UNROUTED
    assert after(5, 6) is Life.DRAINING
    assert after() is Life.UNROUTED
    assert after(4, waited_ms=CONFIRM_TIMEOUT_MS) is Life.DRAINING


def test_a_group_that_leaves_during_a_switch_waits_for_routes_without_it() -> None:
    """Routes of generation 6 contain the instances that keep their phase. Only the next routes omit
    the whole group.
    """
    held = Switch("chat:a1@us/p/owned:9", group(2).placed)
    going = replace(retire(group(2, switch=held), NOW), exit=RouteExit(generation=6))
    (_, left) = step([group(1), going], inputs([group(1), going], {1, 2}, 1.0))
    assert (left.life, left.exit.generation) == (Life.UNROUTED, 0)


def test_a_group_is_gone_when_its_executor_reports_it() -> None:
    """Its instances are STOPPED, ASLEEP (the executor ends them), or absent from a status after the
    drain.
    """
    leaving = group(2, life=Life.DRAINING, since_ms=NOW)
    name = leaving.placed[0].instance
    order = DesiredInstance(name, "chat", "aggregated", leaving.name, (2,), "e", drain=True)
    plan = {"n": Assignment("n", "us/p/owned", 4, 1, NOW, (order,))}

    def left(observed: int, *states: InstanceState, at_ms: int = NOW) -> int:
        seen = tuple(
            ObservedInstance(name, "chat", "aggregated", leaving.name, state, (2,))
            for state in states
        )
        status = Status("n", "us/p/owned", "x", observed, NOW, seen)
        fleet = FleetView({one.instance: one for one in seen}, {"n": status})
        found = inputs([leaving], set(), 0.0, fleet=fleet, assignments=plan, now_ms=at_ms)
        return len(step([leaving], found))

    assert left(4, InstanceState.DRAINING) == 1
    assert left(4, InstanceState.STOPPED) == 0
    assert left(4, InstanceState.ASLEEP) == 0
    assert left(4) == 0
    assert left(3) == 1  # The executor has not read the drain, so absence proves nothing.
    assert left(3, at_ms=NOW + 120_000 + GONE_GRACE_MS) == 0


def test_a_step_with_equal_inputs_changes_nothing() -> None:
    """A step is idempotent."""
    groups = [group(1), retire(group(2), NOW)]
    seen = inputs(groups, {1, 2}, 11.0)
    once = step(groups, seen)
    assert step(once, seen) == once == tuple(groups)


def test_draining_groups_count_against_the_disruption_budget() -> None:
    """Ten groups serve 10 req/s each, and a fifth may leave at a time. While two drain (they are no
    longer ready), a third waits. An instance that never served does not count.
    """
    groups = [group(serial) for serial in range(1, 8)]
    going = {"life": Life.DRAINING, "since_ms": NOW - 1000}
    drains = [group(serial, exit=RouteExit(generation=4), **going) for serial in (8, 9)]
    fleet = [*groups, *drains, retire(group(10), NOW)]
    ready = {1, 2, 3, 4, 5, 6, 7, 10}
    rated = {one.name: 10.0 for one in fleet}
    seen = inputs(fleet, ready, 9.0, max_disruption=0.2, rated_req_per_s=rated)
    by_name = {one.name: one.life for one in step(fleet, seen)}
    assert by_name[fleet[-1].name] is Life.RETIRING
    never = [replace(one, exit=RouteExit()) for one in drains]
    seen = inputs(
        [*groups, *never, fleet[-1]], ready, 9.0, max_disruption=0.2, rated_req_per_s=rated
    )
    by_name = {one.name: one.life for one in step([*groups, *never, fleet[-1]], seen)}
    assert by_name[fleet[-1].name] is Life.UNROUTED


def test_a_proven_surplus_leaves_at_once() -> None:
    """Ten groups serve 10 each, nine of them retire, and all targets need 15 raw. Eight leave in
    one step and two stay.
    """
    groups = [group(1), *(retire(group(k), NOW) for k in range(2, 11))]
    ready = set(range(1, 11))
    given = inputs(groups, ready, 15.0, max_disruption=0.1, proven_req_per_s=15.0)
    left = lives(step(groups, given))
    assert (left.count(Life.UNROUTED), left.count(Life.RETIRING)) == (8, 1)


def test_an_unproven_surplus_keeps_to_the_disruption_budget() -> None:
    """Present telemetry does not prove the surplus. An instance that already
    leaves uses a tenth.
    """
    groups = [group(1), *(retire(group(k), NOW) for k in range(2, 11))]
    given = inputs(groups, set(range(1, 11)), 15.0, max_disruption=0.2)
    assert lives(step(groups, given)).count(Life.UNROUTED) == 2


def test_replacements_keep_to_the_disruption_budget() -> None:
    """The new capacity is not proven yet, so a replaced group is no surplus."""
    new = [group(k) for k in range(1, 6)]
    after = tuple(one.name for one in new)
    groups = [*new, *(retire(group(k), NOW, after) for k in range(6, 11))]
    given = inputs(groups, set(range(1, 11)), 45.0, max_disruption=0.1, proven_req_per_s=45.0)
    assert lives(step(groups, given)).count(Life.UNROUTED) == 1


def test_a_group_that_yields_to_another_model_is_no_surplus() -> None:
    groups = [group(1), *(retire(group(k), NOW, yields=True) for k in range(2, 11))]
    given = inputs(groups, set(range(1, 11)), 0.0, max_disruption=0.1, proven_req_per_s=0.0)
    assert lives(step(groups, given)).count(Life.UNROUTED) == 1


def test_unread_statuses_stop_removals() -> None:
    """While statuses are unread, no group leaves the routes, no drain begins, and no drain times
    out.
    """
    groups = [group(1), retire(group(2), NOW)]
    given = inputs(groups, {1, 2}, 1.0, paused=True)
    assert lives(step(groups, given))[1] is Life.RETIRING
    gone = [group(1), group(2, life=Life.UNROUTED, since_ms=0)]
    assert lives(step(gone, inputs(gone, {1, 2}, 1.0, paused=True)))[1] is Life.UNROUTED
    drains = [group(1), group(2, life=Life.DRAINING, since_ms=NOW - 180_001)]
    assert len(step(drains, inputs(drains, {1}, 1.0))) == 1
    assert len(step(drains, inputs(drains, {1}, 1.0, paused=True))) == 2


def test_failed_and_reclaimed_groups_leave_despite_unread_statuses() -> None:
    failed = [group(1), replace(retire(group(2), NOW), failed_ms=NOW)]
    assert lives(step(failed, inputs(failed, {1}, 1.0, paused=True)))[1] is Life.DRAINING
    groups = [group(1), retire(group(2), NOW)]
    given = inputs(groups, {1, 2}, 1.0, paused=True, reclaim_ms={groups[1].name: NOW + 9})
    assert lives(step(groups, given))[1] is Life.UNROUTED
