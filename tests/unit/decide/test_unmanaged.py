"""Unmanaged servers, which Shoal did not start, are counted and reported but never changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.domain.cluster import Cluster, Mode
from autoscaler.state.controller_state import Observation
from autoscaler.tick.status import ModelStatus, fleet_status
from tests.unit.decide.decide_catalogue import combos, pool, service, simple
from tests.unit.decide.decide_world import World, world
from topics.decisions import Decision
from topics.reason_codes import ReasonCode

ONE = pool("one", nodes=12, per_node=1)
THEIRS = f"chat:a1@{ONE.id}"


def beside(servers: int, req_per_s: float) -> World:
    """A world in mode recommend with `servers` unmanaged servers of 10 requests/s each, at
    `req_per_s`."""
    w = world(
        req_per_s, service(mode=Mode.RECOMMEND, min_instances=1, unmanaged=THEIRS), pools=(ONE,)
    )
    w.unmanaged["chat"] = servers
    return w


def now(w: World) -> ModelStatus:
    seen = Observation(unmanaged=w.unmanaged_servers())
    return fleet_status(w.state, seen, w.cluster, w.now_ms).models[0]


def recommended(w: World) -> list[Decision]:
    return [d for d in w.decisions if d.kind != "hold"]


def test_only_capacity_missing_next_to_unmanaged_servers_is_recommended() -> None:
    """24 req/s at 80% need three servers of 10. With two running, one more is recommended; with
    three, none.
    """
    short, enough = beside(2, 20.0), beside(3, 20.0)
    short.run(300)
    enough.run(300)
    assert [d.change for d in recommended(short)] == [((THEIRS, 1),)]
    assert recommended(enough) == []
    assert not short.state.published.assignments and not enough.state.published.assignments


def test_stopping_every_unneeded_server_is_recommended_once() -> None:
    """There is neither demand nor a minimum."""
    w = beside(3, 0.0)
    none = service(mode=Mode.RECOMMEND, min_instances=0, unmanaged=THEIRS, scale_in_after_s=60.0)
    w.cluster = replace(w.cluster, services=(none,))
    w.run(3600)
    assert sum(dict(d.change)[THEIRS] for d in recommended(w)) == -3


def test_unmanaged_servers_are_shown_with_their_capacity() -> None:
    w = beside(3, 20.0)
    w.run(60)
    shown = now(w)
    assert (shown.unmanaged, shown.ready, shown.wanted) == (3, 3, 3)
    assert shown.ready_req_per_s == shown.wanted_req_per_s == 30.0
    assert "3 run that Shoal did not start" in shown.word
    w.unmanaged["chat"] = 1
    w.run(1)
    assert "1 runs that Shoal did not start" in now(w).word


def test_unmanaged_servers_of_several_pools_count_with_their_own_hardware() -> None:
    """Two servers run in the declared pool and one elsewhere. The change of each pool is stated."""
    other = pool("other", nodes=4, per_node=1)
    theirs = f"chat:a1@{other.id}"
    chat = service(mode=Mode.RECOMMEND, min_instances=1, unmanaged=THEIRS)
    made = {"chat": combos(*simple("chat", ONE), *simple("chat", other))}
    w = world(20.0, chat, pools=(ONE, other), catalogue=made)
    w.unmanaged["chat"] = {THEIRS: 2, theirs: 1}
    w.run(300)
    shown = now(w)
    assert recommended(w) == []
    assert (shown.unmanaged, shown.ready, shown.ready_req_per_s) == (3, 3, 30.0)
    assert dict(w.state.models["chat"].advisory.recommended) == {THEIRS: 2, theirs: 1}
    assert shown.usd_per_h == sum(
        n * w.state.evaluated.combos[i].usd_per_h for i, n in ((THEIRS, 2), (theirs, 1))
    )
    w.unmanaged["chat"] = {THEIRS: 2}
    w.run(60)
    holds = [d.reason for d in w.decisions if ReasonCode.UNMANAGED in d.codes]
    assert sorted(text.partition(";")[0] for text in holds) == [
        f"0 of {theirs} run that Shoal did not start (1 before)",
        f"1 of {theirs} runs that Shoal did not start",
        f"2 of {THEIRS} run that Shoal did not start",
    ]
    assert [sum(dict(d.change).values()) for d in recommended(w)] == [1]


def test_a_manual_change_of_unmanaged_servers_is_stated_and_counted() -> None:
    """A server that a person stops is missing. A server that a person adds as recommended covers
    the demand.
    """
    w = beside(3, 20.0)
    w.run(120)
    w.unmanaged["chat"] = 2
    w.run(60)
    holds = [d.reason for d in w.decisions if ReasonCode.UNMANAGED in d.codes]
    assert holds[0].startswith(f"3 of {THEIRS} run that Shoal did not start;")
    assert holds[1].startswith(f"2 of {THEIRS} run that Shoal did not start (3 before)")
    assert [d.change for d in recommended(w)] == [((THEIRS, 1),)]
    w.unmanaged["chat"] = 3
    w.run(60)
    assert len(recommended(w)) == 1
    assert now(w).wanted == 3


def test_the_last_count_stays_valid_while_prometheus_does_not_answer() -> None:
    """Missing data is not a count of zero."""
    w = beside(3, 20.0)
    w.run(60)
    del w.unmanaged["chat"]
    w.run(120)
    assert recommended(w) == []
    assert now(w).unmanaged is None and now(w).wanted == 3


def test_mode_act_does_not_rely_on_unmanaged_servers() -> None:
    """Servers that Shoal did not start cover no demand in mode act."""
    w = beside(3, 20.0)
    w.cluster = _acting(w)
    w.run(200)
    assert len(w.state.published.assignments) == 3


@pytest.mark.parametrize("kind", ["pause", "release"])
def test_managed_and_unmanaged_instances_count_together_during_a_pause(kind: str) -> None:
    """Three managed instances run; unmanaged servers join and leave while Shoal may not act.
    Afterwards only managed instances count again.
    """
    w = beside(0, 20.0)
    w.cluster = _acting(w)
    w.run(200)
    w.say("chat", kind)
    for theirs in (2, 1):
        w.unmanaged["chat"] = theirs
        w.run(1)
        assert w.state.models["chat"].advisory.recommended == ((THEIRS, 3 + theirs),)
        w.run(60)
    assert not [d for d in w.of_kind("scale_out") if not d.applied]
    w.say("chat", kind, active=False)
    w.run(5)
    assert (
        w.state.models["chat"].advisory.recommended,
        w.state.models["chat"].advisory.unmanaged,
    ) == ((), None)
    w.say("chat", kind)
    w.run(1)
    assert w.state.models["chat"].advisory.recommended == ((THEIRS, 4),), "they are taken in again"


def test_running_instances_count_after_a_recommendation_of_zero() -> None:
    """Shoal recommended zero instances, later started three itself, and is then paused."""
    w = world(lambda _m, t: 15.0 if t < 300 or t > 1200 else 0.0, pools=(ONE,))
    idle = service(mode=Mode.RECOMMEND, min_instances=0, zero_after_s=300.0, scale_in_after_s=300.0)
    w.cluster = replace(w.cluster, services=(idle,))
    w.run(1100)
    assert (
        w.state.models["chat"].advisory.recommended,
        w.state.models["chat"].advisory.recommended_ms > 0,
    ) == (
        (),
        True,
    )
    w.cluster = replace(w.cluster, services=(replace(idle, mode=Mode.ACT),))
    w.run(300)
    runs = w.ready("chat")
    w.say("chat", "pause")
    w.run(1)
    assert runs and w.state.models["chat"].advisory.recommended == ((THEIRS, runs),)


def _acting(w: World) -> Cluster:
    own = service(mode=Mode.ACT, min_instances=1, unmanaged=THEIRS)
    return replace(w.cluster, services=(own,))


def test_recommended_instances_cost_nothing_but_unmanaged_servers_do() -> None:
    w = beside(2, 20.0)
    w.run(300)
    assert now(w).wanted == 3
    assert now(w).usd_per_h == 2 * w.state.evaluated.combos[THEIRS].usd_per_h > 0.0


def test_nothing_is_recommended_until_they_are_counted() -> None:
    """Prometheus knows no such server: a recommendation would start from zero although servers run.
    A count of zero is known."""
    w = beside(3, 20.0)
    del w.unmanaged["chat"]
    w.run(300)
    assert recommended(w) == []
    assert "its servers are not counted" in now(w).word
    w.unmanaged["chat"] = 2
    w.run(60)
    assert [d.change for d in recommended(w)] == [((THEIRS, 1),)]
    empty = beside(0, 20.0)
    empty.run(120)
    assert sum(dict(d.change)[THEIRS] for d in recommended(empty)) == 3


def test_observed_servers_that_miss_their_slo_at_a_planned_load_are_advised_more() -> None:
    """Four servers are planned for 32 requests/s. At 28, a fifth of the requests miss the SLO. Only
    the servers that run prove anything, so advice without effect is not raised again and again.
    """
    fine, late = beside(4, 28.0), beside(4, 28.0)
    late.missing["chat"] = 0.2
    fine.run(330)
    late.run(330)
    assert recommended(fine) == [] and fine.state.models["chat"].capacity.derate >= 1.0
    assert sum(dict(d.change).get(THEIRS, 0) for d in recommended(late)) > 0
    factor = late.state.models["chat"].capacity.derate
    assert 0.7 < factor < 0.9
    late.run(300)
    assert late.state.models["chat"].capacity.derate == factor
