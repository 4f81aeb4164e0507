"""Role switches in place: which groups may switch, and each step forward and back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.domain.combo import Combo, ComboMember
from autoscaler.domain.workload import Phase
from autoscaler.estimate.windows import GatewayReport
from autoscaler.rollout.assignments import changed_assignments
from autoscaler.rollout.drain_confirmation import CONFIRM_TIMEOUT_MS
from autoscaler.rollout.role_switch import (
    SwitchRoom,
    advance,
    switch_groups,
    switchable,
    switched_to,
    view_at_once,
)
from autoscaler.rollout.serving_group import (
    GroupView,
    Life,
    Placed,
    RouteExit,
    ServingGroup,
    fleet_view,
    observe_group,
)
from topics.fleet import Assignment, InstanceState, ObservedInstance, Status
from topics.instance_ranks import GangRank, GangStage

NOW = 1_000_000
P, D, A = Phase.PREFILL, Phase.DECODE, Phase.AGGREGATED
POOL = "us/l4/owned"


def combo(letters: str, rate: float = 10.0, pool: str = POOL, gpus: int = 1) -> Combo:
    """A combo with one instance per letter: "ppd" is two prefill instances and
    a decode instance.
    """
    phases = {"p": P, "d": D, "a": A}
    members = tuple(
        ComboMember(phases[letter], pool, gpus, letters.count(letter), rate)
        for letter in dict.fromkeys(letters)
    )
    return Combo(f"m:{letters}{gpus}@{pool}", "m", "us", members, rate, 1.0, 100.0, 10.0, 60.0)


def group(letters: str, serial: int = 1) -> ServingGroup:
    made = combo(letters)
    phases = [phase for member in made.members for phase in [member.phase] * member.count]
    placed = tuple(
        Placed(f"m-{serial}-{n}", phase, "node", POOL, (4 * serial + n,))
        for n, phase in enumerate(phases)
    )
    return ServingGroup(f"{made.id}:{serial}", "m", made.id, "e", placed, 0)


def phases(one: ServingGroup) -> str:
    return "".join(placed.phase.value[0] for placed in one.placed)


def reported_fleet(
    one: ServingGroup, now: str, **states: InstanceState
) -> tuple[dict[str, Status], GroupView]:
    """The reports of executors. now: phases of the instances. States are given
    by instance number.
    """
    names = {"p": "prefill", "d": "decode", "a": "aggregated"}
    instances = tuple(
        ObservedInstance(
            placed.instance, "m", names[letter], one.name,
            states.get(f"n{n}", InstanceState.READY), placed.gpus, f"h:{n + 1}",
        )
        for n, (placed, letter) in enumerate(zip(one.placed, now, strict=True))
    )  # fmt: skip
    statuses = {"node": Status("node", POOL, "x", 1, NOW, instances)}
    return statuses, observe_group(one, fleet_view(statuses), NOW, 600_000, 15_000)


def switching(before: str, to: str) -> ServingGroup:
    made = switched_to(group(before), combo(to), "m:new:7", NOW)
    assert made is not None
    return made


def step(
    one: ServingGroup, now: str, gateways: tuple[int, ...] = (), wait_ms: int = 0, **states
) -> ServingGroup:
    statuses, view = reported_fleet(one, now, **states)
    assignments = {a.node: a for a in changed_assignments([one], {}, 1, NOW)}
    heard = [GatewayReport(f"g{n}", "b", NOW, 0, route) for n, route in enumerate(gateways)]
    return advance(one, view, heard, fleet_view(statuses), assignments, NOW + wait_ms)


@pytest.mark.parametrize(
    ("before", "to", "after"),
    [("ppd", "pdd", "pdd"), ("pd", "aa", "aa"), ("aad", "ppd", "ppd"), ("pdd", "ppd", "pdp")],
)
def test_as_many_instances_as_possible_keep_their_phase(before: str, to: str, after: str) -> None:
    one = switching(before, to)
    assert phases(one) == after
    assert [p.instance for p in one.placed] == [p.instance for p in group(before).placed]


def test_a_change_of_slices_is_no_role_switch() -> None:
    one = group("pd")
    for other in (combo("p"), combo("ppd"), combo("pd", gpus=2), combo("pd", pool="us/h100/spot")):
        assert switched_to(one, other, "m:new:7", NOW) is None
    assert switched_to(replace(one, stays=True), combo("dp"), "m:new:7", NOW) is None


def test_only_surplus_groups_switch() -> None:
    """Each of three groups serves 10. With a surplus of 12 one group switches. If two groups must
    stay, one switches. If none is ready, none switches.
    """
    groups = [group("ppd", n) for n in (1, 2, 3)]
    combos = {c.id: c for c in (combo("ppd"), combo("pdd"))}
    targets = {group.name: combo("pdd").id for group in groups}

    def switched(ready: list[ServingGroup], spare: float, floor: int) -> int:
        room = SwitchRoom({g.name: 10.0 for g in ready}, spare, floor)
        found = len(switch_groups(targets, groups, combos, room, 7, NOW))
        assert len(switchable(groups, room)) == found  # as in the planner's request
        return found

    assert switched(groups, 12.0, 1) == 1
    assert switched(groups, 99.0, 1) == 2
    assert switched(groups, 99.0, 2) == 1
    assert switched(groups, 9.0, 1) == 0
    assert switched([], 99.0, 0) == 0


def test_a_switching_or_rolled_back_group_is_not_chosen() -> None:
    groups = [group("ppd", 1), replace(group("ppd", 2), stays=True), switching("ppd", "pdd")]
    room = SwitchRoom({g.name: 10.0 for g in groups}, 99.0, 0)
    assert switchable(groups, room) == (groups[0],)


def test_component_cells_and_pipelines_do_not_switch() -> None:
    """The instances of a group may differ only in their role."""
    plain = group("ppd")
    room = SwitchRoom({plain.name: 10.0}, 99.0, 0)
    assert switchable([plain], room) == (plain,)
    first, *rest = plain.placed
    component = replace(first, instance=f"{first.instance}+vision")
    rank = replace(first, gang=GangRank("g", 0, (GangStage("L4", 1, 2), GangStage("L4", 1, 2))))
    for part in (component, rank):
        other = replace(plain, placed=(part, *rest))
        assert not switchable([other], room)
        assert switched_to(other, combo("pdd"), "new", NOW) is None


def test_executors_get_a_switch_after_gateways_confirm_the_routes() -> None:
    """Until then the assignment stays the same. Instances that keep their phase still serve."""
    one = switching("ppd", "pdd")
    (before,) = changed_assignments([group("ppd")], {}, 1, NOW)
    assert changed_assignments([one], {"node": before}, 1, NOW) == ()
    _, view = reported_fleet(one, "ppd")
    assert [placed.phase for placed, _ in view.ready] == [P, D]
    assert view_at_once(one, reported_fleet(group("ppd"), "ppd")[1]).ready == view.ready
    routed = replace(one, exit=RouteExit(generation=4))
    assert step(routed, "ppd", gateways=(4, 3)) == routed
    asked = step(routed, "ppd", gateways=(4, 5))
    assert asked.switch is not None
    assert asked.switch.asked
    late = step(one, "ppd", wait_ms=CONFIRM_TIMEOUT_MS)
    assert late.switch is not None
    assert late.switch.asked
    (after,) = changed_assignments([asked], {"node": before}, 1, NOW)
    assert [wish.phase for wish in after.instances] == ["prefill", "decode", "decode"]
    assert [w.instance for w in after.instances] == [w.instance for w in before.instances]


def requested_switch() -> ServingGroup:
    return step(switching("ppd", "pdd"), "ppd", wait_ms=CONFIRM_TIMEOUT_MS)


def test_a_switch_ends_when_all_instances_serve_in_their_new_phases() -> None:
    one = requested_switch()
    assert step(one, "ppd", n1=InstanceState.SWITCHING) == one
    done = step(one, "pdd")
    assert (done.switch, done.life, phases(done)) == (None, Life.ACTIVE, "pdd")


def test_a_rollback_by_one_executor_rolls_back_the_whole_group() -> None:
    """The group is as before the switch, and the switch is not requested again."""
    found = step(requested_switch(), "ppd")
    before = group("ppd")
    assert (found.name, found.combo_id, found.placed) == (
        before.name, before.combo_id, before.placed,
    )  # fmt: skip
    assert (found.switch, found.stays) == (None, True)


def test_an_unread_switch_is_no_refusal() -> None:
    one = requested_switch()
    statuses, view = reported_fleet(one, "ppd")
    (told,) = changed_assignments([one], {}, 1, NOW)
    newer = {"node": Assignment(told.node, told.pool, 2, 1, NOW, told.instances)}
    assert advance(one, view, (), fleet_view(statuses), newer, NOW) == one
