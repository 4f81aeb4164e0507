"""Role switches that the planner chooses: instances change phase on their present GPUs.

In these tests requests begin to need more decode and less prefill.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pytest

from autoscaler.decide import restore
from autoscaler.domain.cluster import Cluster, Policy, Service
from autoscaler.domain.schedule import Weekly
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Demand
from autoscaler.planning.planner_messages import PlanRequest, RunningGroup, Urgency
from tests.unit.decide.decide_catalogue import (
    BUCKET,
    DECODE,
    PREFILL,
    Catalogue,
    Planner,
    combo,
    combos,
    pool,
    service,
    simple,
)
from tests.unit.decide.decide_world import T0, World, reused, world
from topics.alerts import Alert
from topics.reason_codes import ReasonCode

FLEET = pool(nodes=9, per_node=1, usd=1.0)
CHAT = service(max_disruption=0.4)


def catalogue(prefill_heavy: float, decode_heavy: float) -> Catalogue:
    """Two combos on equal slices: two prefill and one decode instance, or one prefill and two
    decode."""
    return {
        "chat": combos(
            combo("chat", [(PREFILL, 1, FLEET, 2, prefill_heavy / 2), (DECODE, 1, FLEET, 1, 99.0)]),
            combo("chat", [(PREFILL, 1, FLEET, 1, 99.0), (DECODE, 1, FLEET, 2, decode_heavy / 2)]),
        )
    }


@reused
def settled(chat: Service = CHAT) -> World:
    """A world with three groups of 10 requests/s on all GPUs, for 22 requests/s at 80%."""
    found = catalogue(10.0, 4.0)
    return world(22.0, chat, pools=(FLEET,), catalogue=found, step_s=1).run(300)


def changed(w: World, missing: float = 0.2) -> World:
    """Change the planner's rates, let the share `missing` of requests miss the SLO, and trigger a
    plan."""
    w.missing["chat"] = missing
    w.planner.catalogue = catalogue(8.0, 16.0)
    w.alerts.append(Alert("f", "slow", "firing", w.now_ms, ("chat",)))
    return w


def phases(w: World) -> dict[str, str]:
    return {i.instance: i.phase for a in w.applied.values() for i in a.instances if not i.drain}


def test_no_instance_switches_while_every_request_meets_its_slo() -> None:
    """The plan predicts more capacity for other roles, but no request misses its SLO."""
    w = settled()
    before = phases(w)
    changed(w, missing=0.0).run(90)
    assert phases(w) == before


@pytest.mark.parametrize("disruption", [0.4, 0.1])
def test_instances_switch_roles_on_their_own_gpus(disruption: float) -> None:
    """No instance is started, and one keeps serving in each phase during the switch. A group larger
    than the disruption budget may switch alone, as it may leave alone.
    """
    w = settled(replace(CHAT, max_disruption=disruption))
    before, launched = phases(w), dict(w.launched)
    least = []
    changed(w).run(90, lambda x: least.append(x.ready("chat")))
    after = phases(w)
    assert after.keys() <= before.keys()
    assert dict(w.launched).items() <= launched.items()
    assert any(before[name] != phase for name, phase in after.items())
    assert min(least) > 0
    said = [d for d in w.decisions if ReasonCode.ROLE_SWITCHES in d.codes]
    assert len(said) == 1
    assert w.state.groups
    assert all(group.switch is None for group in w.state.groups)


def test_plans_switch_roles_only_after_slo_misses() -> None:
    """Misses trigger the plan themselves; it does not wait for the period."""
    w = settled()
    before = len(w.requests(Urgency.FULL))
    changed(w).run(60)
    asked = w.requests(Urgency.FULL)[before:]
    assert [dict(request.switchable or ()) for request in asked[:2]] == [
        {},
        {combos(*catalogue(1.0, 1.0)["chat"])[0].id: 1},
    ]
    assert len(asked) == 2
    (said,) = (d for d in w.decisions if ReasonCode.ROLE_SWITCHES in d.codes)
    assert ReasonCode.ROLES in said.codes and said.at_ms - asked[1].at_ms <= 2000


def pairs(count: int, share: float) -> World:
    """A world with `count` groups on all nodes, all of them needed.

    All should switch roles, at most `share` of the capacity at a time. Some requests miss the SLO.
    """
    where = pool(nodes=3 * count, per_node=1, usd=1.0)

    def of(prefill_heavy: float, decode_heavy: float) -> Catalogue:
        ratios = ((2, 1, prefill_heavy / 2, 99.0), (1, 2, 99.0, decode_heavy / 2))
        return {
            "chat": combos(
                *(combo("chat", [(PREFILL, 1, where, p, in_), (DECODE, 1, where, d, out)])
                  for p, d, in_, out in ratios)
            )
        }  # fmt: skip

    def rate(_: str, t_s: int) -> float:
        return (7.5 if t_s <= 300 else 11.5) * count

    chat = service(max_disruption=share)
    w = world(rate, chat, pools=(where,), catalogue=of(10.0, 4.0)).run(300)
    w.planner.catalogue = of(8.0, 16.0)
    w.missing["chat"] = 0.2
    return w


def switching(w: World) -> int:
    return sum(group.switch is not None for group in w.state.groups)


def test_role_switches_follow_each_other_without_waiting_for_the_period() -> None:
    """Only some groups may switch at a time. The last of four is done long
    before the next period.
    """
    w = pairs(4, 0.25).run(60)
    assert len({group.combo_id for group in w.state.groups}) == 1
    assert phases(w) and sum(p == "prefill" for p in phases(w).values()) == 4


def test_role_switches_count_against_the_disruption_budget() -> None:
    """A tenth of eight groups is less than one group, so one may switch at a time."""
    w = pairs(8, 0.1)
    w.confirm = False
    most = []
    for n in range(60):
        if switching(w) and n % 3 == 0:
            w.alerts.append(Alert(f"f{n}", "slow", "firing", w.now_ms, ("chat",)))
        w.tick()
        most.append(switching(w))
    assert 1 <= max(most) <= 2


def test_no_role_switch_is_planned_during_a_freeze() -> None:
    at = dt.datetime.fromtimestamp(T0 / 1000, tz=dt.UTC) + dt.timedelta(minutes=5)
    window = Weekly.parse(f"{at:%H:%M}-{at + dt.timedelta(hours=1):%H:%M}")
    w = settled(replace(CHAT, freezes=(window,)))
    before = len(w.requests(Urgency.FULL))
    changed(w).run(200)
    assert not any(ReasonCode.ROLE_SWITCHES in d.codes for d in w.decisions)
    assert len(w.requests(Urgency.FULL)) - before <= 2


def test_unprofitable_role_switches_are_evaluated_once() -> None:
    """Each plan records the instances that may switch, so the planner does not
    evaluate them again.
    """
    w = settled()
    before = len(w.requests(Urgency.FULL))
    changed(w)
    w.stubborn.update(phases(w))
    w.rate = lambda _, t_s: 60.0
    w.planner.catalogue = catalogue(8.0, 8.0)
    w.run(300)
    assert len(w.requests(Urgency.FULL)) - before <= 3


def test_a_model_switches_roles_while_an_instance_of_another_model_starts() -> None:
    """The plan of chat needs no further node, so it does not wait for an instance of code whose
    node never starts.
    """
    mine, other = pool(nodes=30, per_node=1, usd=1.0), pool("other", nodes=8, per_node=1, usd=1.0)

    def of(decode_heavy: float) -> Catalogue:
        ratios = ((2, 1, 5.0, 99.0), (1, 2, 99.0, decode_heavy / 2))
        chat = (
            combo("chat", [(PREFILL, 1, mine, p, in_), (DECODE, 1, mine, d, out)])
            for p, d, in_, out in ratios
        )
        return {"chat": combos(*chat), "code": simple("code", other)}

    def rate(model: str, t_s: int) -> float:
        if model == "chat":
            return 80.0 if t_s < 700 else 68.0
        return 5.0 if t_s < 1200 else 30.0

    services = (service("chat"), service("code"))
    w = world(rate, *services, pools=(mine, other), catalogue=of(4.0), step_s=1).run(900)
    w.planner.catalogue = of(25.0)
    w.stuck.add(other.id)
    for _ in range(320):
        w.tick()
        if switching(w):
            break
    assert w.ready("code") < w.assigned_count("code")
    assert switching(w)


def test_target_combos_share_the_instances_that_may_switch() -> None:
    where = pool(nodes=12, per_node=1, usd=1.0)
    ratios = ((3, 1, 2.0), (2, 2, 6.0), (1, 3, 11.0))
    known = tuple(
        combo("chat", [(PREFILL, 1, where, p, each), (DECODE, 1, where, d, 99.0)])
        for p, d, each in ratios
    )
    cluster = Cluster((where,), (service(),), Policy())
    for may in (0, 1, 2):
        request = PlanRequest(
            1, Urgency.FULL, 0, (Demand("chat", 26.0, BUCKET),), ((known[0].id, 3),),
            ((where.id, 12),), scope=("chat",), switchable=((known[0].id, may),),
            groups=tuple(RunningGroup(f"{known[0].id}:{n}", known[0].id) for n in range(3)),
        )  # fmt: skip
        found = Planner({"chat": known}).answer(request, cluster)
        assert len(found.change.switches) == may
    with pytest.raises(InvalidValue, match=r"switchable of chat.*-1"):
        replace(request, switchable=((known[0].id, -1),))


def test_a_rolled_back_group_serves_as_before_and_another_group_switches() -> None:
    """The executor rolls the switch back. The controller does not request it
    again for this group.
    """
    w = settled()
    w.stubborn.update(phases(w))
    before = phases(w)
    changed(w).run(120)
    assert [group for group in w.state.groups if group.stays]
    assert {n: p for n, p in phases(w).items() if n in before}.items() <= before.items()
    assert w.ready("chat") > 0


def test_a_rolled_back_group_is_routed_again_at_once() -> None:
    """The tick that reads the rollback routes the whole group again. Routes name three groups at
    all times.
    """
    w = settled()
    w.stubborn.update(phases(w))
    groups: list[int] = []
    capacity: list[bool] = []

    def observe(x: World) -> None:
        groups.append(len(x.routes["chat"].groups))
        capacity.append(all(group.combo_id in x.state.evaluated.combos for group in x.state.groups))

    changed(w).run(60, observe)
    assert [group for group in w.state.groups if group.stays]
    assert set(groups) == {3}
    assert all(capacity)


def test_a_new_leader_drops_a_switch_that_no_executor_received() -> None:
    """The fleet stayed as it was, because the request was never published."""
    w = settled()
    w.confirm = False
    changed(w)
    for _ in range(90):
        w.tick()
        if any(group.switch for group in w.state.groups):
            break
    assert any(group.switch and not group.switch.asked for group in w.state.groups)
    found = restore(w.cluster, w.applied, w.routes, w.statuses, [], w.now_ms, leader_token=2)
    known = {replace(group, since_ms=0, created_ms=0).combo_id for group in found.groups}
    assert known == {combos(*catalogue(1.0, 1.0)["chat"])[0].id}


@pytest.mark.parametrize("refused", [True, False])
def test_a_new_leader_continues_a_requested_switch(refused: bool) -> None:
    """Routes name every instance in the phase that it serves, whether the switch succeeds or is
    rolled back.
    """
    w = settled()
    if refused:
        w.stubborn.update(phases(w))
    changed(w)
    for _ in range(90):
        if any(group.switch and group.switch.asked for group in w.state.groups):
            break
        w.tick()
    (source,) = (g.switch.source for g in w.state.groups if g.switch)
    w.restart_controller()
    (found,) = (group for group in w.state.groups if group.switch)
    assert found.switch is not None and found.switch.asked
    assert found.switch.source.rsplit(":", 1)[0] == source.rsplit(":", 1)[0]
    w.run(60)
    serves = {i.instance: i.phase for status in w.statuses.values() for i in status.instances}
    routed = [
        (end.instance, phase)
        for route in w.routes["chat"].groups
        for phase, ends in (("prefill", route.prefill), ("decode", route.decode))
        for end in ends
    ]
    assert len(routed) == 9
    assert all(serves[instance] == phase for instance, phase in routed)


def test_no_switch_is_made_if_a_start_is_cheaper() -> None:
    found = catalogue(10.0, 4.0)
    w = world(22.0, CHAT, pools=(FLEET,), catalogue=found, policy=Policy(k_switch=1.0)).run(300)
    changed(w).run(90)
    assert not [d for d in w.decisions if ReasonCode.ROLE_SWITCHES in d.codes]
