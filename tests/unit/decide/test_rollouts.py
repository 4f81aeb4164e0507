"""Changed versions replace running instances in waves, and failing ones are taken back."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest

from autoscaler.domain.cluster import Market, Mode, Service
from autoscaler.domain.rollout_policy import RolloutPolicy
from tests.unit.decide.decide_catalogue import (
    DECODE,
    PREFILL,
    combo,
    combos,
    pool,
    service,
    simple,
)
from tests.unit.decide.decide_world import World, world
from topics.fleet import DesiredInstance
from topics.lora_adapters import Adapter
from topics.reason_codes import ReasonCode as Code

RENTED = pool(per_node=1, usd=2.0)
OWNED = pool("box", nodes=1, per_node=4, market=Market.OWNED)
NEW = "v0.33"
QUICK = RolloutPolicy(watch_s=30.0)


def fleet(rate: float = 22.0, **changes: object) -> World:
    """A settled model on rented nodes of one GPU each, which serve 10 requests/s."""
    served = service("chat", **{"rollout": QUICK, "max_disruption": 0.5, **changes})
    return world(rate, served, pools=(RENTED,)).run(150)


def box(rate: float, spare: str = "none", **changes: object) -> World:
    """A settled model on all four GPUs of an owned node; rented GPUs are much more expensive."""
    policy = replace(QUICK, spare=spare)
    settings = {"rollout": policy, "min_instances": 4, **changes}
    other = pool("cloud", per_node=1, usd=9.0)
    made = combos(*simple("chat", OWNED), *simple("chat", other))
    where = (OWNED, other)
    return world(rate, service("chat", **settings), pools=where, catalogue={"chat": made}).run(150)


def change(w: World, **changes: object) -> World:
    """Declare the model with `changes`."""
    changed = replace(w.cluster.services[0], **changes)
    w.cluster = replace(w.cluster, services=(changed,))
    return w


def instances(w: World) -> list[DesiredInstance]:
    return [i for a in w.applied.values() for i in a.instances if not i.drain]


def versions(w: World) -> set[str]:
    return {i.version for i in instances(w)}


def engines(w: World) -> list[str]:
    return sorted(i.engine for i in instances(w))


def codes(w: World) -> set[str]:
    return {code for decision in w.decisions for code in decision.codes}


class Watch:
    """The least routed capacity, and every instance by engine, from now on."""

    def __init__(self) -> None:
        self.least_req_per_s = 1e9
        self.names: dict[str, set[str]] = defaultdict(set)
        self.three_versions_s = 0

    def __call__(self, w: World) -> None:
        self.least_req_per_s = min(self.least_req_per_s, w.routed_req_per_s("chat"))
        for one in instances(w):
            self.names[one.engine].add(one.instance)
        self.three_versions_s += len(versions(w)) > 2


CHAT = service("chat")


@pytest.mark.parametrize(
    "changes",
    [
        {"engine": NEW},
        {"engine": "default@3f2a91c04b7d"},
        {"weights": "org/chat-2"},
        {"adapters": (Adapter("law", "org/law"),)},
        {"max_len_tokens": 16_384},
        {"architecture": replace(CHAT.architecture, name="org/chat-2")},
        {"architecture": replace(CHAT.architecture, max_seqs=64)},
    ],
    ids=["engine", "arguments", "weights", "adapters", "max_len", "source", "max_num_seqs"],
)
def test_every_launched_property_is_rolled_out_without_a_loss_of_capacity(
    changes: dict[str, object],
) -> None:
    w, seen = fleet(), Watch()
    old = versions(w)
    assert len(instances(w)) == 3 and len(old) == 1
    change(w, **changes).run(600, seen)
    assert versions(w) == {w.cluster.services[0].version} != old
    assert len(instances(w)) == 3
    assert seen.least_req_per_s >= 30.0
    assert {Code.ROLLOUT_BEGAN, Code.ROLLOUT_WAVE, Code.ROLLOUT_DONE} <= codes(w)


def test_changes_that_launch_nothing_else_replace_nothing() -> None:
    w = fleet()
    before = instances(w)
    change(w, max_disruption=0.2, percentile=0.9, scale_in_after_s=900.0).run(150)
    assert instances(w) == before
    assert Code.ROLLOUT_BEGAN not in codes(w)


def test_prefill_and_decode_are_rolled_out_as_one_unit() -> None:
    pair = combo("chat", [(PREFILL, 1, RENTED, 1, 10.0), (DECODE, 1, RENTED, 2, 5.0)])
    served = service("chat", rollout=QUICK)
    w = world(7.0, served, pools=(RENTED,), catalogue={"chat": combos(pair)}).run(150)
    seen = Watch()
    change(w, engine=NEW).run(600, seen)
    assert engines(w) == [NEW] * 3
    assert seen.least_req_per_s >= 10.0
    by_group = defaultdict(set)
    for one in instances(w):
        by_group[one.group].add(one.phase)
    assert set(map(frozenset, by_group.values())) == {frozenset({"prefill", "decode"})}


def test_a_full_owned_node_is_rolled_out_in_place_within_its_slack() -> None:
    w, seen = box(22.0), Watch()
    assert len(instances(w)) == 4
    change(w, engine=NEW).run(900, seen)
    assert engines(w) == [NEW] * 4
    assert {a.pool for a in w.applied.values() if a.instances} == {OWNED.id}
    assert seen.least_req_per_s >= 30.0  # one combo at a time


def test_a_full_owned_node_without_slack_waits_until_demand_falls() -> None:
    w = box(31.0)
    change(w, engine=NEW).run(600)
    assert NEW not in engines(w) and Code.NO_SLACK in codes(w)
    w.rate = lambda _model, _t: 18.0
    w.run(900)
    assert engines(w) == [NEW] * 4


def test_after_the_declared_time_a_rollout_needs_no_slack() -> None:
    w, seen = box(31.0, rollout=replace(QUICK, spare="none", within_s=300.0)), Watch()
    change(w, engine=NEW).run(1200, seen)
    assert engines(w) == [NEW] * 4
    assert seen.least_req_per_s >= 30.0


def test_a_bridge_of_the_planner_keeps_the_capacity_of_a_full_owned_node() -> None:
    w, seen = box(31.0, spare="rent"), Watch()
    change(w, engine=NEW).run(1500, seen)
    assert {i.engine for i in instances(w)} == {NEW}
    assert seen.least_req_per_s >= 40.0
    assert w.state.models["chat"].rollout.bridge_req_per_s == 0.0


def test_a_bad_image_stops_at_one_instance_and_is_taken_back() -> None:
    w, seen = fleet(), Watch()
    w.failing = {NEW}
    before = instances(w)
    change(w, engine=NEW).run(900, seen)
    assert len(seen.names[NEW]) == 1
    assert instances(w) == before
    assert seen.least_req_per_s >= 30.0
    taken = next(d for d in w.decisions if Code.ROLLOUT_TAKEN_BACK in d.codes)
    assert Code.START_FAILED in taken.codes and "no CUDA device" in taken.reason
    w.rate = lambda _model, _t: 40.0
    w.run(300, seen)
    assert len(instances(w)) > 3 and len(seen.names[NEW]) == 1  # demand gets the former version


@pytest.mark.parametrize(
    ("fault", "code"), [("stuck", Code.NOT_READY), ("crashing", Code.CRASH_LOOP)]
)
def test_a_version_that_does_not_load_or_crashes_is_taken_back(fault: str, code: Code) -> None:
    w, seen = fleet(rollout=replace(QUICK, watch_s=120.0)), Watch()
    setattr(w, fault, {NEW})
    change(w, engine=NEW).run(1200, seen)
    assert len(seen.names[NEW]) == 1
    assert engines(w) == ["default"] * 3
    assert seen.least_req_per_s >= 30.0
    assert code in next(d for d in w.decisions if Code.ROLLOUT_TAKEN_BACK in d.codes).codes


def test_a_bad_image_on_a_full_owned_node_is_replaced_by_the_former_version() -> None:
    w, seen = box(22.0), Watch()
    w.failing = {NEW}
    change(w, engine=NEW).run(900, seen)
    assert engines(w) == ["default"] * 4
    assert len(seen.names[NEW]) == 1 and seen.least_req_per_s >= 30.0


@pytest.mark.parametrize("after_s", (20, 60, 100))
def test_a_new_leader_continues_a_rollout(after_s: int) -> None:
    w, seen = box(22.0), Watch()
    change(w, engine=NEW).run(after_s, seen)
    w.restart_controller()
    w.run(900, seen)
    assert engines(w) == [NEW] * 4
    assert seen.least_req_per_s >= 30.0
    assert {a.pool for a in w.applied.values() if a.instances} == {OWNED.id}


def test_demand_that_rises_during_a_rollout_is_served_first() -> None:
    w, seen = fleet(), Watch()
    change(w, engine=NEW).run(90, seen)
    w.rate = lambda _model, _t: 42.0
    w.run(240, seen)
    assert w.routed_req_per_s("chat") >= 50.0
    assert seen.least_req_per_s >= 30.0
    w.run(1200, seen)
    assert {i.engine for i in instances(w)} == {NEW}


def test_a_second_change_goes_to_the_newest_version() -> None:
    w, seen = fleet(rate=38.0), Watch()
    change(w, engine=NEW).run(130, seen)
    assert len(versions(w)) == 2
    change(w, engine="v0.34").run(900, seen)
    assert {i.engine for i in instances(w)} == {"v0.34"}
    assert len(seen.names[NEW]) <= 2
    assert seen.three_versions_s <= 240
    assert seen.least_req_per_s >= 38.0


def test_a_change_that_is_taken_back_returns_to_the_former_version() -> None:
    w, seen = fleet(rate=38.0), Watch()
    change(w, engine=NEW).run(130, seen)
    change(w, engine="default").run(600, seen)
    assert set(engines(w)) == {"default"}
    assert len(seen.names[NEW]) <= 2 and seen.least_req_per_s >= 38.0


def test_records_of_an_older_controller_count_as_the_version_that_they_run() -> None:
    w = fleet()
    before = [i.instance for i in instances(w)]
    for node, record in w.applied.items():
        old = tuple(replace(one, version="") for one in record.instances)
        w.applied[node] = replace(record, instances=old)
    w.ledger.clear()
    w.restart_controller()
    w.run(150)
    assert [i.instance for i in instances(w)] == before
    assert versions(w) == {w.cluster.services[0].version}
    change(w, weights="org/chat-2").run(600)
    assert not {i.instance for i in instances(w)} & set(before)


def test_mode_approve_asks_once_for_a_rollout() -> None:
    w = fleet()
    change(w, mode=Mode.APPROVE).run(30)
    change(w, engine=NEW).run(120)
    asked = [d for d in w.decisions if Code.ROLLOUT_PROPOSED in d.codes]
    assert len(asked) == 1 and asked[0].expires_ms
    assert engines(w) == ["default"] * 3
    w.say("*", "verdict", proposal=asked[0].number, leader_token=asked[0].leader_token)
    w.run(600)
    assert engines(w) == [NEW] * 3
    assert sum(bool(d.expires_ms) for d in w.decisions) == 1


def test_a_rejected_rollout_replaces_nothing() -> None:
    w = fleet()
    change(w, mode=Mode.APPROVE, engine=NEW).run(120)
    asked = next(d for d in w.decisions if Code.ROLLOUT_PROPOSED in d.codes)
    w.say("*", "verdict", False, proposal=asked.number, leader_token=asked.leader_token)
    w.run(2400)
    assert engines(w) == ["default"] * 3
    assert sum(Code.ROLLOUT_PROPOSED in d.codes for d in w.decisions) == 1


def test_an_operator_pauses_resumes_and_takes_back_a_rollout() -> None:
    w = fleet()
    w.say("chat", "rollout-pause")
    change(w, engine=NEW).run(150)
    assert engines(w) == ["default"] * 3
    w.say("chat", "rollout-pause", False)
    w.run(100)
    assert NEW in engines(w)
    w.say("chat", "rollout-back")
    w.run(400)
    assert engines(w) == ["default"] * 3
    assert Code.ORDERED_BACK in codes(w)
    w.say("chat", "rollout-pause", False)
    w.run(600)
    assert engines(w) == [NEW] * 3


def test_a_model_without_instances_starts_in_the_declared_version() -> None:
    w = fleet(rate=0.0, min_instances=0, zero_after_s=60.0)
    w.zero = {"chat"}
    w.run(900)
    change(w, engine=NEW).run(30)
    w.zero = set()
    w.rate = lambda _model, _t: 5.0
    w.run(200)
    assert set(engines(w)) == {NEW}


def test_no_spare_and_one_instance_waits_with_a_reason() -> None:
    policy = replace(QUICK, spare="none")
    w = world(5.0, service("chat", rollout=policy), pools=(RENTED,)).run(150)
    change(w, engine=NEW).run(150)
    assert engines(w) == ["default"] and Code.NO_SLACK in codes(w)


def test_versions_ignore_everything_that_a_launch_does_not_use() -> None:
    one: Service = service("chat")
    assert one.version == service("chat", priority=3, min_instances=2).version
    assert one.version != service("chat", engine="other").version
