"""The first instance of a changed version is compared with the former version."""

from __future__ import annotations

import contextlib
import random
from dataclasses import replace

import pytest

from autoscaler.domain.cluster import Policy
from autoscaler.domain.rollout_policy import CanaryPolicy, RolloutPolicy
from autoscaler.tick.rollout_status import rollout_status
from tests.unit.decide import decide_versions
from tests.unit.decide.decide_catalogue import DECODE, PREFILL, combo, combos, service
from tests.unit.decide.decide_versions import EngineTraits
from tests.unit.decide.decide_world import World, world
from tests.unit.decide.test_rollouts import (
    NEW,
    RENTED,
    Watch,
    change,
    codes,
    engines,
    instances,
)
from topics.reason_codes import ReasonCode as Code

CANARY = RolloutPolicy(watch_s=30.0, canary=CanaryPolicy())
SLOW = EngineTraits(times=1.3)


@pytest.fixture(autouse=True)
def same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has the same noise, whichever tests ran before."""
    monkeypatch.setattr(decide_versions, "_SAME", random.Random(57))


def fleet(rate: float = 22.0, **changes: object) -> World:
    """A settled model with a canary, on rented nodes of one GPU each, which serve 10 requests/s."""
    served = service("chat", **{"rollout": CANARY, "max_disruption": 0.5, **changes})
    quick = Policy(drain_timeout_s=30.0)
    return world(rate, served, pools=(RENTED,), policy=quick).run(90)


class _Reached(Exception):
    """Ends a run early."""


def until(w: World, code: Code, most_s: int, seen: Watch | None = None) -> World:
    """Run until a decision has `code`, but no longer than `most_s`."""
    first = len(w.decisions)

    def observe(w: World) -> None:
        if seen is not None:
            seen(w)
        if any(code in decision.codes for decision in w.decisions[first:]):
            raise _Reached

    with contextlib.suppress(_Reached):
        w.run(most_s, observe)
    return w


def cost_usd_per_h(w: World) -> float:
    return sum(target.usd_per_h for target in w.plans[-1].targets)


def taken_back(w: World) -> str:
    return next(d.reason for d in w.decisions if Code.ROLLOUT_TAKEN_BACK in d.codes)


def test_an_equal_version_is_compared_and_rolled_out() -> None:
    w, seen = fleet(), Watch()
    until(change(w, engine=NEW), Code.ROLLOUT_DONE, 1200, seen)
    assert engines(w) == [NEW] * 3
    assert Code.CANARY_FIT in codes(w) and Code.ROLLOUT_DONE in codes(w)
    assert seen.least_req_per_s >= 30.0
    assert not any(group.version for group in w.routes["chat"].groups)


@pytest.mark.parametrize(
    ("traits", "words"),
    [
        (SLOW, "instead of"),
        (EngineTraits(errors=0.1), "failed requests"),
        (EngineTraits(answers=0.6), "answers, if shorter,"),
        (EngineTraits(answers=1.6), "answers, if longer,"),
    ],
    ids=["slow", "errors", "short answers", "long answers"],
)
def test_a_worse_version_is_taken_back_after_one_instance(traits: EngineTraits, words: str) -> None:
    w, seen = fleet(), Watch()
    w.engines[NEW] = traits
    before = len(instances(w))
    until(change(w, engine=NEW), Code.ROLLOUT_TAKEN_BACK, 1200, seen)
    assert words in taken_back(w) and "the canary is worse" in taken_back(w)
    assert Code.CANARY_WORSE in codes(w)
    w.run(150, seen)
    assert engines(w) == ["default"] * before
    assert len(seen.names[NEW]) == 1 and seen.least_req_per_s >= 30.0


def test_a_faster_version_lowers_the_cost_afterwards() -> None:
    w = fleet(rate=52.0, scale_in_after_s=120.0)
    cost = cost_usd_per_h(w)
    w.engines[NEW] = EngineTraits(times=1 / 1.3)
    until(change(w, engine=NEW), Code.ROLLOUT_DONE, 3000)
    assert set(engines(w)) == {NEW}
    assert cost_usd_per_h(w) < cost
    assert w.state.models["chat"].capacity.derate == pytest.approx(1.3, rel=0.05)


def test_a_canary_gets_its_share_of_the_traffic_only() -> None:
    policy = replace(CANARY, canary=CanaryPolicy(share=0.1))
    w, shares = fleet(rate=14.0, min_instances=3, rollout=policy), list[float]()

    def observe(w: World) -> None:
        groups = w.routes["chat"].groups
        new = w.cluster.services[0].version
        if any(group.version for group in groups):
            mine = sum(g.weight for g in groups if g.version == new)
            shares.append(mine / sum(g.weight for g in groups))

    change(w, engine=NEW).run(120, observe)
    assert shares and shares[-1] == pytest.approx(0.1, rel=0.1)
    w.rate = lambda _model, _t: 22.0  # two instances cannot serve nine tenths of it
    w.run(150, observe)
    assert shares[-1] > 0.2


def test_without_traffic_the_rollout_continues_after_the_declared_time() -> None:
    policy = replace(CANARY, canary=CanaryPolicy(within_s=400.0))
    w = fleet(rollout=policy)
    w.zero = {"chat"}
    change(w, engine=NEW).run(420)
    assert engines(w).count(NEW) == 1 and Code.CANARY_UNDECIDED not in codes(w)
    until(w, Code.ROLLOUT_DONE, 900)
    assert set(engines(w)) == {NEW}
    assert Code.CANARY_UNDECIDED in codes(w)


def test_a_single_instance_stays_until_the_verdict() -> None:
    w, seen = fleet(rate=5.0), Watch()
    old = [i.instance for i in instances(w)]
    assert len(old) == 1
    change(w, engine=NEW).run(150, seen)
    assert sorted(engines(w)) == ["default", NEW]
    until(w, Code.ROLLOUT_DONE, 2700, seen)
    assert engines(w) == [NEW] and seen.least_req_per_s >= 10.0
    assert Code.CANARY_FIT in codes(w)


def test_a_single_instance_remains_if_the_canary_is_worse() -> None:
    w = fleet(rate=5.0)
    old = [i.instance for i in instances(w)]
    w.engines[NEW] = SLOW
    until(change(w, engine=NEW), Code.ROLLOUT_TAKEN_BACK, 3000).run(150)
    assert [i.instance for i in instances(w)] == old
    assert w.state.models["chat"].rollout.bridge_req_per_s == 0.0


def test_a_new_leader_continues_the_comparison() -> None:
    w = fleet()
    w.engines[NEW] = SLOW
    w.engines["default"] = EngineTraits()
    change(w, engine=NEW).run(150)
    known = w.state.models["chat"].rollout.comparison
    assert known is not None and known.total.new.completed > 0
    w.restart_controller()
    again = w.state.models["chat"].rollout.comparison
    assert again is not None and again.total.new.completed > 0
    until(w, Code.ROLLOUT_TAKEN_BACK, 1200).run(150)
    assert engines(w) == ["default"] * 3 and "the canary is worse" in taken_back(w)


def test_a_lost_canary_is_replaced_and_not_blamed() -> None:
    w = fleet()
    change(w, engine=NEW).run(160)
    node = next(n for n, a in w.applied.items() if any(i.engine == NEW for i in a.instances))
    w.cut.add(node)
    w.silent = {"chat"}
    known = w.state.models["chat"].rollout.comparison
    until(w, Code.ROLLOUT_WAVE, 900)
    w.cut.clear()
    w.silent = set()
    again = w.state.models["chat"].rollout.comparison
    assert known is not None and again is not None and again.total.new.completed > 0
    until(w, Code.ROLLOUT_WAVE, 900)
    assert Code.CANARY_FIT in codes(w) and Code.ROLLOUT_TAKEN_BACK not in codes(w)


def test_a_surge_during_the_comparison_is_served_by_the_former_version() -> None:
    w, seen = fleet(), Watch()
    change(w, engine=NEW).run(65)
    w.rate = lambda _model, _t: 42.0
    w.run(80, seen)
    assert w.routed_req_per_s("chat") >= 50.0 and len(seen.names[NEW]) == 1
    until(w, Code.CANARY_FIT, 600)
    assert Code.CANARY_FIT in codes(w)


def test_a_second_change_is_compared_anew() -> None:
    w = fleet()
    w.engines["v0.34"] = SLOW
    change(w, engine=NEW).run(150)
    until(change(w, engine="v0.34"), Code.ROLLOUT_TAKEN_BACK, 3000).run(150)
    assert engines(w) == ["default"] * 3
    assert "the canary is worse" in taken_back(w)


def test_pause_resume_and_back_work_during_a_comparison() -> None:
    w = fleet()
    change(w, engine=NEW).run(120)
    w.say("chat", "rollout-pause")
    until(w, Code.CANARY_FIT, 900).run(60)
    assert engines(w).count(NEW) == 1
    w.say("chat", "rollout-pause", False)
    w.run(30)
    assert engines(w).count(NEW) == 2
    w.say("chat", "rollout-back")
    until(w, Code.ROLLOUT_DONE, 900)
    assert engines(w) == ["default"] * 3
    assert w.state.models["chat"].capacity.derate == pytest.approx(1.0, abs=0.05)


def test_long_prompts_of_the_canary_do_not_decide() -> None:
    w = fleet()
    w.engines[NEW] = EngineTraits(times=1.4, prompts=2.0)
    only = CanaryPolicy(compare=("ttft", "tpot"), within_s=600.0)
    until(change(w, engine=NEW, rollout=replace(CANARY, canary=only)), Code.CANARY_UNDECIDED, 900)
    assert Code.CANARY_UNDECIDED in codes(w) and Code.ROLLOUT_TAKEN_BACK not in codes(w)


def test_the_status_shows_the_figures() -> None:
    w = fleet()
    w.engines[NEW] = EngineTraits(times=1.15)
    change(w, engine=NEW).run(180)
    served = w.cluster.services[0]
    found = rollout_status(served, w.state.models["chat"], w.state.groups, w.now_ms)
    assert found is not None and found.state == "comparing" and found.canary is not None
    by_name = {one.property: one for one in found.canary.properties}
    assert by_name.keys() == {"errors", "ttft", "tpot", "longer", "shorter"}
    tpot = by_name["tpot"]
    assert tpot.new == pytest.approx(23.0, rel=0.1) and tpot.former == pytest.approx(20.0, rel=0.1)
    assert found.canary.answers > 0 and tpot.worse_of > 0


@pytest.mark.parametrize("traits", [EngineTraits(), SLOW], ids=["equal", "slow"])
def test_a_combo_of_prefill_and_decode_is_one_canary(traits: EngineTraits) -> None:
    where = replace(RENTED, max_nodes=12)
    pair = combo("chat", [(PREFILL, 1, where, 1, 10.0), (DECODE, 1, where, 2, 5.0)])
    served = service("chat", rollout=CANARY, max_disruption=0.5)
    quick = Policy(drain_timeout_s=30.0)
    made = {"chat": combos(pair)}
    w, seen = world(14.0, served, pools=(where,), catalogue=made, policy=quick).run(120), Watch()
    assert len(instances(w)) == 6
    w.engines[NEW] = traits
    end = Code.ROLLOUT_TAKEN_BACK if traits is SLOW else Code.ROLLOUT_DONE
    until(change(w, engine=NEW), end, 1200, seen).run(150, seen)
    assert set(engines(w)) == {"default" if traits is SLOW else NEW} and len(instances(w)) == 6
    assert len(seen.names[NEW]) == (3 if traits is SLOW else 6)
    assert seen.least_req_per_s >= 20.0
    assert (Code.CANARY_WORSE if traits is SLOW else Code.CANARY_FIT) in codes(w)
