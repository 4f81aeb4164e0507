"""Pauses, releases, freezes, scheduled minimums and scale to zero, through the
whole of `decide`.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pytest

from autoscaler.domain.cluster import Mode
from autoscaler.domain.schedule import Weekly
from autoscaler.domain.validation import InvalidValue
from autoscaler.state.effects import PublishAssignment, PublishPlan, PublishRoutes
from tests.unit.decide.decide_catalogue import pool, service
from tests.unit.decide.decide_world import T0, World, world
from topics.reason_codes import ReasonCode

ONE = pool("one", nodes=12, per_node=1)
ACTIONS = (PublishAssignment, PublishRoutes, PublishPlan)


def actions(w: World) -> int:
    return sum(isinstance(effect, ACTIONS) for effect in w.effects)


def busy(at_s: int) -> World:
    """A world with 20 req/s, then 60 req/s from `at_s` on."""
    return world(lambda _m, t: 60.0 if t >= at_s else 20.0, pools=(ONE,))


@pytest.mark.parametrize("scope", ["chat", "*"])
@pytest.mark.parametrize("kind", ["pause", "release"])
def test_a_paused_fleet_does_not_change(scope: str, kind: str) -> None:
    """A surge, a lost node and an excess follow the pause. Decisions state each of them."""
    w = world(lambda _m, t: 60.0 if 160 <= t < 300 else 20.0, pools=(ONE,)).run(150)
    before = w.ready("chat")
    w.say(scope, kind)
    w.run(1)
    done = actions(w)
    w.run(40)
    w.cut.add(min(w.rented(ONE.id)))
    w.run(900)
    assert actions(w) == done and w.ready("chat") == before
    said = [d for d in w.decisions if d.model == scope and "by ann: incident 7" in d.reason]
    assert len(said) == 1
    later = [d for d in w.decisions if d.at_ms > T0 + 150_000 and d.kind == "scale_out"]
    assert later and not any(d.applied for d in later)


def test_a_resumed_model_gets_its_needed_capacity_at_once() -> None:
    w = busy(160).run(150)
    w.say("chat", "pause")
    w.run(100)
    assert w.assigned_count("chat") < 6
    w.say("chat", "pause", active=False)
    w.run(90)
    assert w.ready("chat") >= 7
    assert any(d.codes == (ReasonCode.RESUMED,) for d in w.decisions)


def test_a_pause_with_a_time_limit_ends_by_itself() -> None:
    w = busy(160).run(150)
    w.say("chat", "pause", until_ms=w.now_ms + 60_000)
    w.run(55)
    assert w.assigned_count("chat") < 6
    w.run(100)
    assert w.ready("chat") >= 7


def test_other_models_scale_while_one_is_paused() -> None:
    w = world(
        lambda _m, t: 60.0 if t >= 160 else 20.0, service("chat"), service("mini"), pools=(ONE,)
    ).run(150)
    w.say("chat", "pause")
    w.run(120)
    assert w.assigned_count("mini") > w.assigned_count("chat")


@pytest.mark.parametrize("why", ["release chat", "pause chat", "pause *", "recommend"])
def test_instances_of_an_undeclared_paused_model_keep_running(why: str) -> None:
    """No instance of the model drains, and its routes stay."""
    w = world(20.0, service("chat"), service("mini"), pools=(ONE,)).run(150)
    before = w.routes["chat"].groups
    assert len(before) == w.assigned_count("chat") == 3
    if why == "recommend":
        w.cluster = replace(
            w.cluster, services=(service("chat", mode=Mode.RECOMMEND), service("mini"))
        )
    else:
        kind, scope = why.split()
        w.say(scope, kind)
    w.run(5)
    w.undeclare("chat")
    w.run(60)
    assert w.assigned_count("chat") == 3 and w.routes["chat"].groups == before


def test_a_model_undeclared_during_its_pause_leaves_when_the_pause_ends() -> None:
    w = world(20.0, service("chat"), service("mini"), pools=(ONE,)).run(150)
    w.say("*", "pause")
    w.run(5)
    w.undeclare("chat")
    w.run(60)
    w.say("*", "pause", active=False)
    w.run(60)
    assert w.assigned_count("chat") == 0 and w.assigned_count("mini") == 3


def test_a_freeze_window_blocks_removals_and_permits_additions() -> None:
    now = dt.datetime.fromtimestamp(T0 / 1000, tz=dt.UTC)
    frozen = Weekly.parse(f"{now:%H:%M}-{now + dt.timedelta(hours=1):%H:%M}")
    w = world(
        lambda _m, t: 60.0 if 200 <= t < 400 else 20.0,
        service(freezes=(frozen,)),
        pools=(ONE,),
    ).run(330)
    high = w.ready("chat")
    assert high >= 7
    w.run(2400)
    assert w.ready("chat") == high and "scale_in" not in w.kinds()
    w.run(1500)
    assert w.ready("chat") < high and "scale_in" in w.kinds()
    assert any(ReasonCode.FREEZE_BEGAN in d.codes for d in w.decisions)


def test_a_scheduled_minimum_holds_during_its_window() -> None:
    now = dt.datetime.fromtimestamp(T0 / 1000, tz=dt.UTC)
    hours = [f"{now + dt.timedelta(minutes=m):%H:%M}" for m in (5, 25)]
    floor = Weekly.parse(f"{hours[0]}-{hours[1]}")
    w = world(5.0, service(floors=((floor, 4),)), pools=(ONE,)).run(280)
    assert w.ready("chat") == 1
    w.run(180)
    assert w.ready("chat") == 4
    w.run(1000)
    assert w.ready("chat") == 4
    w.run(1200)
    assert w.ready("chat") == 1


def test_a_model_goes_to_zero_after_its_idle_time_and_not_before() -> None:
    """Both phases leave together, because a combo is one group. The first
    request wakes the model.
    """
    idle = service(min_instances=0, zero_after_s=1200.0, scale_in_after_s=300.0)
    w = world(lambda _m, t: 0.0 if 300 <= t < 3000 else 15.0, idle, pools=(ONE,)).run(300 + 1150)
    assert w.ready("chat") == 1
    w.run(400)
    assert w.ready("chat") == 0 and w.assigned_count("chat") == 0
    w.run(1300)
    assert w.ready("chat") >= 1


def test_missing_telemetry_does_not_scale_to_zero() -> None:
    """Telemetry is missing for longer than the idle time, and the last combo stays."""
    w = world(15.0, service(min_instances=0, zero_after_s=600.0), pools=(ONE,)).run(300)
    before = w.ready("chat")
    w.silent.add("g1")
    w.run(1700)
    assert w.ready("chat") == before


def at(text: str) -> int:
    return int(dt.datetime.fromisoformat(text).timestamp() * 1000)


@pytest.mark.parametrize(
    ("window", "moment", "inside"),
    [
        ("mon-fri 08:00-18:00", "2026-01-05T08:00+00:00", True),  # a Monday
        ("mon-fri 08:00-18:00", "2026-01-05T18:00+00:00", False),
        ("mon-fri 08:00-18:00", "2026-01-04T12:00+00:00", False),
        ("fri 22:00-06:00", "2026-01-10T05:59+00:00", True),  # Saturday morning
        ("fri 22:00-06:00", "2026-01-09T05:59+00:00", False),
        ("sat,sun 10:00-24:00", "2026-01-10T23:59+00:00", True),
        ("22:00-06:00", "2026-01-07T23:00+00:00", True),
        ("fri-mon 00:00-24:00", "2026-01-04T12:00+00:00", True),
    ],
)
def test_weekly_windows(window: str, moment: str, inside: bool) -> None:
    assert Weekly.parse(window).contains(at(moment)) is inside


def test_a_window_follows_the_summer_time_of_its_zone() -> None:
    """08:00 in Berlin is 07:00 UTC in winter and 06:00 UTC in summer."""
    window = Weekly.parse("08:00-09:00", "Europe/Berlin")
    assert window.contains(at("2026-01-05T07:30+00:00"))
    assert window.contains(at("2026-07-06T06:30+00:00"))
    assert not window.contains(at("2026-07-06T07:30+00:00"))


@pytest.mark.parametrize(
    "text", ["8-18", "mon 25:00-26:00", "xyz 08:00-09:00", "", 5, "08:00-24:01"]
)
def test_an_invalid_window_is_refused(text: object) -> None:
    with pytest.raises(InvalidValue, match="weekly window"):
        Weekly.parse(text)


def test_a_minimum_above_the_maximum_is_refused() -> None:
    with pytest.raises(InvalidValue, match="floors"):
        replace(service(max_instances=2), floors=((Weekly.parse("08:00-09:00"), 3),))
