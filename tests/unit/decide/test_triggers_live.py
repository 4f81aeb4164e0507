"""Each trigger leads to a full plan within two ticks of its record. Simultaneous triggers share
plans.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from autoscaler.domain.cluster import Market, Pool
from autoscaler.domain.reason import Reason
from autoscaler.domain.schedule import Weekly
from autoscaler.planning.planner_messages import PlanRequest, Urgency
from autoscaler.rollout.serving_group import Life, RouteExit
from autoscaler.state.replan_trigger import Trigger, partly_applied
from tests.unit.decide.decide_catalogue import AGGREGATED as A
from tests.unit.decide.decide_catalogue import combo, combos, pool, service, simple
from tests.unit.decide.decide_world import World, reused, world
from topics.alerts import Alert
from topics.reason_codes import ReasonCode
from topics.supply import Availability, Price

NEAR, FAR = pool("near", per_node=1, usd=2.0), pool("far", per_node=1, usd=3.0)
BOTH = {
    "chat": combos(
        combo("chat", [(A, 1, NEAR, 1, 10.0)]),
        combo("chat", [(A, 1, FAR, 1, 10.0)]),
    )
}


@reused
def settled(**switches: object) -> World:
    """A world with 12 req/s on two combos of the nearer pool, a minute after the last periodic
    plan."""
    return world(12.0, pools=(NEAR, FAR), catalogue=BOTH, step_s=1, **switches).run(360)


def alert(number: int = 1, state: str = "firing", models: tuple[str, ...] = ()) -> Alert:
    return Alert(f"f{number}", "high-latency", state, 1, models)


def full(w: World, since: int) -> list[tuple[PlanRequest, tuple[Reason, ...]]]:
    """Requests for full plans after tick `since`, each with its triggers."""
    after = [r for r in w.requests(Urgency.FULL) if r.at_ms > w.now_ms - (w.t_s - since) * 1000]
    return [(r, w.reasons.get(r.number, ())) for r in after]


def _of(why: tuple[Reason, ...], code: ReasonCode, node: str) -> bool:
    return any(one.code is code and node in one.names for one in why)


def dearer(w: World) -> None:
    w.prices[NEAR.id] = Price(NEAR.id, 20.0, w.now_ms)


def offered(w: World) -> None:
    w.availability[FAR.id] = Availability(FAR.id, 0, w.now_ms)


def changed(w: World) -> None:
    services = tuple(replace(s, percentile=0.99) for s in w.cluster.services)
    w.cluster = replace(w.cluster, services=services)


def alerted(w: World) -> None:
    w.alerts.append(alert())


@pytest.mark.parametrize(
    ("happens", "code", "subject"),
    [
        (dearer, ReasonCode.PRICE, NEAR.id),
        (offered, ReasonCode.AVAILABILITY, FAR.id),
        (changed, ReasonCode.SERVICE_CHANGED, "chat"),
        (alerted, ReasonCode.ALERT, "high-latency"),
    ],
)
def test_each_trigger_record_leads_to_a_full_plan_within_two_ticks(
    happens: Callable[[World], None], code: ReasonCode, subject: str
) -> None:
    w = settled()
    at = w.t_s
    happens(w)
    w.run(2)
    ((_, why),) = full(w, at)
    assert (code, subject) in [(one.code, one.subject) for one in why]
    assert not [u for u in w.state.pending if u is Urgency.FULL]


def test_a_tenfold_price_moves_the_fleet_to_the_other_pool_make_before_break() -> None:
    w = settled()
    dearer(w)

    def check(w: World) -> None:
        assert w.routed_req_per_s("chat") * 0.8 >= 12.0

    w.run(120, check)
    assert len(w.rented(FAR.id)) == 2 and not w.rented(NEAR.id)
    (moved,) = w.of_kind("replan")
    assert ReasonCode.PRICE in moved.codes and moved.cost_delta_usd_per_h == 6.0 - 40.0


def test_a_lost_node_and_its_return_lead_to_one_plan_each() -> None:
    """A node counts as lost after 60 s of silence. Two ticks after its next
    report it counts again.
    """
    w = settled()
    lost = min(w.rented(NEAR.id))
    w.cut.add(lost)
    at = w.t_s
    w.run(62)
    assert any(_of(why, ReasonCode.NODE_LOST, lost) for _, why in full(w, at))
    assert len(w.rented(NEAR.id)) == 3 and w.of_kind("replace")
    w.cut.clear()
    at = w.t_s
    w.run(2)
    assert any(_of(why, ReasonCode.NODE_BACK, lost) for _, why in full(w, at))
    w.run(360)  # the cool-down after the replacement, plus one period
    assert len(w.rented(NEAR.id)) == 2


def test_a_failed_launch_leads_to_a_plan_with_another_node() -> None:
    w = world(
        12.0, pools=(NEAR, FAR), catalogue=BOTH, step_s=1, failing={"us.near.on-demand.0"}
    ).run(25)
    assert any(_of(why, ReasonCode.LAUNCH_FAILED, "us.near.on-demand.0") for _, why in full(w, 0))
    w.run(65)
    assert w.ready("chat") == 2 and "us.near.on-demand.0" not in w.rented(NEAR.id)


def test_many_alerts_share_plans_within_the_limit() -> None:
    """Ten alerts arrive each second for two minutes. No minute has more than 6 full plans, and no
    alert is lost.
    """
    w = settled()
    at, count = w.t_s, len(w.decisions)
    for second in range(120):
        w.alerts += [alert(10 * second + k, models=("chat",)) for k in range(10)]
        w.run(1)
    asked = [r.at_ms for r, _ in full(w, at)]
    assert all(sum(t <= u < t + 60_000 for u in asked) <= 6 for t in asked)
    assert 6 <= len(asked) <= 13 and len(w.decisions) == count
    w.run(70)
    assert w.state.full.due == ()


def test_duplicates_of_an_alert_wait_as_one_trigger() -> None:
    w = settled(full_s=60)
    w.alerts.append(alert())
    w.run(5)
    for _ in range(5):
        w.alerts += [alert(), alert(2)]
        w.run(1)
    assert [one.why.code for one in w.state.full.due] == [ReasonCode.ALERT]


def test_a_resolved_alert_leads_to_no_plan_and_no_scale_in() -> None:
    """A dead exporter resolves alerts too."""
    w = world(lambda _m, t: 40.0 if t < 200 else 10.0, pools=(NEAR,), catalogue=None).run(361)
    at = w.t_s
    w.alerts.append(alert(state="resolved"))
    w.run(100)
    assert full(w, at) == [] and w.of_kind("scale_in") == []


def test_an_alert_plans_only_its_own_declared_model() -> None:
    services = (service("chat"), service("code"))
    catalogue = {m: simple(m, NEAR) for m in ("chat", "code")}
    w = world(5.0, *services, pools=(NEAR,), catalogue=catalogue).run(360)
    at = w.t_s
    w.alerts.append(alert(models=("nobody",)))
    w.run(2)
    assert full(w, at) == []
    w.alerts.append(alert(models=("code",)))
    w.run(2)
    ((request, _),) = full(w, at)
    assert request.scope == ("code",)


def test_a_new_service_gets_its_minimum_and_a_removed_one_leaves() -> None:
    catalogue = {m: simple(m, NEAR) for m in ("chat", "code")}
    w = world(5.0, service("chat"), pools=(NEAR,), catalogue=catalogue, step_s=1).run(100)
    w.cluster = replace(w.cluster, services=(service("chat"), service("code")))
    w.run(2)
    assert w.assigned_count("code") == 1
    w.run(100)
    w.cluster = replace(w.cluster, services=(service("chat"),))
    w.run(300)
    assert w.assigned_count("code") == 0 and w.ready("chat") == 1


def test_no_periodic_plan_is_due_during_a_solve() -> None:
    """Solves take 100 s and are due every 300 s. They do not follow each other immediately."""
    w = world(12.0, pools=(NEAR, FAR), catalogue=BOTH, full_s=100)
    for _ in range(1000):
        w.tick()
    full = w.requests(Urgency.FULL)
    assert [(r.at_ms - w.requests()[0].at_ms) // 1000 for r in full] == [299, 599, 899]


def test_a_waiting_trigger_of_a_withdrawn_model_is_dropped() -> None:
    """The model is withdrawn during a solve. Triggers of other models still wait."""
    services = (service("chat"), service("code"))
    catalogue = {m: simple(m, NEAR) for m in ("chat", "code")}
    w = world(5.0, *services, pools=(NEAR,), catalogue=catalogue, full_s=40).run(310)
    assert Urgency.FULL in w.state.pending
    missed = Reason(ReasonCode.SLO_MISSED, "chat", quantities=(0.5, 100))
    due = partly_applied("code", Reason(ReasonCode.NO_ROOM)), Trigger(("chat", "code"), missed)
    w.state = replace(w.state, full=replace(w.state.full, due=due))
    w.cluster = replace(w.cluster, services=(service("chat"),))
    w.run(1)
    kept = {(one.why.code, one.scope) for one in w.state.full.due}
    assert kept == {(ReasonCode.SLO_MISSED, ("chat",)), (ReasonCode.SERVICE_REMOVED, ())}
    w.run(100)
    assert w.ready("chat") == 1 and w.assigned_count("code") == 0 and w.state.full.due == ()


@pytest.mark.parametrize(("where", "asked"), [(FAR, ("chat", "code")), (NEAR, ("code",))])
def test_a_model_without_a_node_waits_for_a_drain_only_in_its_own_pools(
    where: Pool, asked: tuple[str, ...]
) -> None:
    """An instance of code drains slowly and frees a node. The node is in a pool that chat can use,
    or in another pool.
    """
    services = (service("chat"), service("code"))
    catalogue = {"chat": simple("chat", NEAR), "code": simple("code", where)}
    w = world(5.0, *services, pools=(NEAR, FAR), catalogue=catalogue, drain_s=500).run(340)
    leaves = next(g for g in w.state.groups if g.model == "code")
    no_room = partly_applied("chat", Reason(ReasonCode.NO_ROOM))
    gone = replace(leaves, life=Life.DRAINING, since_ms=w.now_ms, exit=RouteExit(yields=True))
    w.state = replace(
        w.state,
        groups=tuple(gone if g is leaves else g for g in w.state.groups),
        full=replace(w.state.full, due=(no_room,)),
    )
    w.alerts.append(alert(models=("code",)))
    at = w.t_s
    w.run(1)
    ((request, why),) = full(w, at)
    assert request.scope == asked and (no_room.why in why) == ("chat" in asked)
    assert [*w.state.full.due] == [no_room] * ("chat" not in asked)


def test_the_deletion_of_an_empty_node_triggers_no_plan() -> None:
    """The executor of the node falls silent when the provider deletes the empty node."""
    w = settled()
    w.run(600)
    before = w.rented(NEAR.id)
    w.rate = lambda _m, _t: 3.0
    for _ in range(1800):
        w.tick()
        if len(w.rented(NEAR.id)) < len(before):
            break
    (empty,) = before - w.rented(NEAR.id)
    w.run(30)
    w.cut.add(empty)
    at = w.t_s
    w.run(300)
    assert empty in w.state.observed.silent_nodes
    assert not any(empty in one.names for _, why in full(w, at) for one in why)


def test_a_model_without_a_node_is_planned_again_twice_a_minute() -> None:
    """chat needs one node but keeps six of eight because of a freeze. mini needs seven nodes and
    gets them after the freeze.
    """
    where = pool("own", nodes=8, per_node=1, market=Market.OWNED)
    always = Weekly.parse("00:00-24:00")
    rates = {"chat": (45.0, 5.0, 5.0), "mini": (8.0, 8.0, 50.0)}
    w = world(
        lambda model, t_s: rates[model][(t_s >= 200) + (t_s >= 400)],
        service("chat", priority=5, scale_in_after_s=60.0, freezes=(always,)),
        service("mini"),
        pools=(where,),
    ).run(900)
    asked = len(w.requests(Urgency.FULL))
    w.run(300)
    assert (w.assigned_count("chat"), w.assigned_count("mini")) == (6, 2)
    assert len(w.requests(Urgency.FULL)) - asked <= 12
    chat, mini = w.cluster.services
    w.cluster = replace(w.cluster, services=(replace(chat, freezes=()), mini))
    w.run(200)
    assert w.assigned_count("chat") == 1 and w.ready("mini") == 7
