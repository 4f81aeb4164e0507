"""Role switches that the planner chooses, carried out in place: requests came to need more decode
than prefill, say. The GPUs stay the same, and so do the instances."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.decide import rebuild
from autoscaler.domain.cluster import Policy, Service
from autoscaler.planning.request import Urgency
from tests.unit.decide.decide_catalogue import (
    DECODE,
    PREFILL,
    Catalogue,
    combo,
    combos,
    pool,
    service,
)
from tests.unit.decide.decide_world import World, world
from topics.alerts import Alert

FLEET = pool(nodes=9, per_node=1, usd=1.0)
CHAT = service(max_disruption=0.4)


def catalogue(prefill_heavy: float, decode_heavy: float) -> Catalogue:
    """Two prefill instances and a decode one, or the other way round, on the same slices."""
    return {
        "chat": combos(
            combo("chat", [(PREFILL, 1, FLEET, 2, prefill_heavy / 2), (DECODE, 1, FLEET, 1, 99.0)]),
            combo("chat", [(PREFILL, 1, FLEET, 1, 99.0), (DECODE, 1, FLEET, 2, decode_heavy / 2)]),
        )
    }


def settled(chat: Service = CHAT) -> World:
    """Three groups of 10 requests/s on all of the GPUs, for 22 requests/s at 80%."""
    found = catalogue(10.0, 4.0)
    return world(22.0, chat, pools=(FLEET,), catalogue=found).run(300)


def changed(w: World, missing: float = 0.2) -> World:
    """Other rates, requests that miss their SLO, and a reason to plan anew."""
    w.missing["chat"] = missing
    w.planner.catalogue = catalogue(8.0, 16.0)
    w.alerts.append(Alert("f", "slow", "firing", w.now_ms, ("chat",)))
    return w


def phases(w: World) -> dict[str, str]:
    return {i.instance: i.phase for a in w.applied.values() for i in a.instances if not i.drain}


def test_nothing_is_taken_from_what_is_seen_to_serve_all() -> None:
    """Other roles are believed to hold more, and no SLO is missed."""
    w = settled()
    before = phases(w)
    changed(w, missing=0.0).run(90)
    assert phases(w) == before


@pytest.mark.parametrize("disruption", [0.4, 0.1])
def test_instances_change_roles_where_they_are(disruption: float) -> None:
    """None is started; one serves on in each phase while the others switch. A group that is more
    than the disruption budget switches by itself, as it would leave by itself."""
    w = settled(replace(CHAT, max_disruption=disruption))
    before, launched = phases(w), dict(w.launched)
    least = []
    changed(w).run(90, lambda x: least.append(x.ready("chat")))
    after = phases(w)
    assert after.keys() <= before.keys()
    assert dict(w.launched).items() <= launched.items()
    assert any(before[name] != phase for name, phase in after.items())
    assert min(least) > 0
    said = [d for d in w.decisions if "in place" in d.reason]
    assert len(said) == 1
    assert w.state.groups
    assert all(group.switch is None for group in w.state.groups)


def test_what_cannot_switch_yet_is_not_planned_to() -> None:
    """Nothing is planned in vain while no SLO is missed; the misses themselves call for the plan
    that switches, without waiting for the period."""
    w = settled()
    before = len(w.requests(Urgency.FULL))
    changed(w).run(60)
    asked = w.requests(Urgency.FULL)[before:]
    assert [dict(request.switchable or ()) for request in asked[:2]] == [
        {},
        {combos(*catalogue(1.0, 1.0)["chat"])[0].id: 1},
    ]
    assert len(asked) == 2
    (said,) = (d for d in w.decisions if "in place" in d.reason)
    assert "may change roles" in said.reason and said.at_ms - asked[1].at_ms <= 2000


def test_what_would_not_switch_is_what_it_was_and_others_take_its_place() -> None:
    """Rolled back by its executor: its group serves as before, and is not asked again."""
    w = settled()
    w.stubborn.update(phases(w))
    before = phases(w)
    changed(w).run(120)
    assert [group for group in w.state.groups if group.stays]
    assert {n: p for n, p in phases(w).items() if n in before}.items() <= before.items()
    assert w.ready("chat") > 0


def test_a_new_leader_finds_a_switch_that_was_not_asked_yet_undone() -> None:
    """Nobody was told of it, so the fleet is what it was."""
    w = settled()
    w.confirm = False
    changed(w)
    for _ in range(90):
        w.tick()
        if any(group.switch for group in w.state.groups):
            break
    assert any(group.switch and not group.switch.asked for group in w.state.groups)
    found = rebuild(w.cluster, w.applied, w.routes, w.statuses, [], w.now_ms, leader_token=2)
    known = {replace(group, since_ms=0, created_ms=0).combo_id for group in found.groups}
    assert known == {combos(*catalogue(1.0, 1.0)["chat"])[0].id}


def test_where_a_switch_is_dearer_than_a_start_none_is_made() -> None:
    found = catalogue(10.0, 4.0)
    w = world(22.0, CHAT, pools=(FLEET,), catalogue=found, policy=Policy(k_switch=1.0)).run(300)
    changed(w).run(90)
    assert not [d for d in w.decisions if "in place" in d.reason]
