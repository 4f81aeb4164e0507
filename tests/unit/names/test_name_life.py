"""Names are declared, withdrawn, finalized and gone; nothing of them stays, and nothing returns."""

from __future__ import annotations

from pathlib import Path

import pytest

from executors.gateway.gateway_metrics import GatewayMetrics
from executors.gateway.route_table import RouteTable
from tests.unit.names.names_world import TINY, Log, NamesWorld, without_hours
from topics.codec import decode, encode
from topics.keys import Keys
from topics.name_life import KEYS, TRANSITIONS, NameLife, life_of
from topics.records import DeclaredService, Routes
from topics.topic_table import TABLE, Cleanup

SIGNED = Keys(cluster="k" * 32)


def test_a_name_changes_its_stage_only_as_the_table_states() -> None:
    """Its use may change at any time, and so may its declaration."""
    facts = [(d, u, k) for d in (True, False) for u in (True, False) for k in (True, False)]
    reached = {life_of(*one) for one in facts}
    assert reached == {stage for step in TRANSITIONS for stage in step} == set(NameLife)
    assert all(life_of(True, *rest) is NameLife.DECLARED for _, *rest in facts)
    assert (NameLife.GONE, NameLife.WITHDRAWN) not in TRANSITIONS


def test_every_compacted_topic_has_a_rule_for_its_keys() -> None:
    assert KEYS.keys() == {topic.name for topic in TABLE if topic.cleanup is Cleanup.COMPACT}


def kept(w: NamesWorld) -> dict[str, set[bytes | None]]:
    """The keys on the topics, without the hours of the declared model."""
    return without_hours(w.log.keys())


def memory_of(w: NamesWorld) -> dict[str, int]:
    """Numbers of names in the memory of the controller and the gateway."""
    latest, state = w.latest, w.loop.state
    return {
        "services": len(latest.declared.services), "refused": len(latest.declared.refused),
        "overwritten": len(latest.declared.overwritten), "beyond": len(latest.desired.beyond),
        "routes": len(latest.desired.routes), "assignments": len(latest.desired.assignments),
        "published": len(state.published.routes),
        "models": len(state.models), "said": len(w.loop._said_ms),
        "failed": len(state.full.failed_ms), "lengths": len(state.full.last.lengths),
        "demands": len(state.evaluated.demands), "read": len(w.declared._read),
        "good": len(w.declared._good), "absent": len(w.declared._absent),
        "routers": len(w.table.routers), "leaving": len(w.table.leaving),
        "withdrawn": len([*w.table.withdrawn]), "signing": len(w._signer._last_ms),
        "windows": len(w.loop.windows._gateways.models),
    }  # fmt: skip


@pytest.mark.parametrize("keys", [Keys(), SIGNED], ids=["unsigned", "signed"])
def test_names_that_came_and_went_leave_nothing_and_do_not_return(
    tmp_path: Path, keys: Keys
) -> None:
    """The keys of every topic, the memory and the list of models are as before. After tombstones
    have expired, neither copies of old records nor a new controller bring a name back.
    """
    w = NamesWorld(tmp_path, keys)
    w.run(2)
    w.declare("base")
    w.withdraw("base")
    w.rest()
    before, memory, listed = kept(w), memory_of(w), set(w.table.routers)
    assert listed == {"mini"}
    old: dict[str, int] = {}
    for round_ in range(5):
        names = [f"m{round_}-{at}" for at in range(40)]
        old |= dict.fromkeys(names, w.declare(*names))
        w.run(2)
        assert set(names) < set(w.table.routers) and set(names) < set(w.models())
        w.withdraw(*names)
        w.run(3)
        assert w.models() == ["mini"] and set(w.table.routers) == listed
        assert w.is_unknown(names[0])
        w.rest()
    assert kept(w) == before and memory_of(w) == memory and len(w.sweep) <= 10
    assert set(w.table.routers) == listed
    w.log.compact(expire=True)
    w.now_ms += 2 * 86_400_000
    for new_leader in (False, True):
        for model, version in list(old.items())[::7]:
            w.declare(model, version=version)
        if new_leader:
            w.lead()
        w.run(3)
        assert w.models() == ["mini"] and set(w.table.routers) == listed
        w.rest()
        assert kept(w) == before, "the leader deletes the copies"
    assert not w.poison
    w.declare("m0-0")
    w.run(3)
    assert "m0-0" in w.models() and "m0-0" in w.table.routers


def test_a_declared_name_stays_if_its_key_is_deleted_or_replaced_by_an_old_record(
    tmp_path: Path,
) -> None:
    w = NamesWorld(tmp_path)
    first = w.declare("a")
    w.run(2)
    newest = w.declare("a", text=TINY.replace("1s", "3s"))
    w.run(2)
    for value in (None, encode(DeclaredService("a", TINY, w.now_ms, first))):
        w.log.write("services", b"a", value, w.now_ms)
        w.run(3)
        w.log.compact()
        w.lead()
        w.run(2)
        assert w.declared().service("a").slo.ttft_ms == 3000.0
        assert w.latest.declared.services["a"].version == newest


def test_a_withdrawn_model_of_the_file_stays_withdrawn_everywhere(tmp_path: Path) -> None:
    """Its name is in the file, so its withdrawal stays: for the next controller, and for a gateway
    that restarts with its saved routes or declares the model in its options.
    """
    w = NamesWorld(tmp_path)
    w.run(2)
    w.declare("mini")
    w.run(2)
    w.withdraw("mini")
    w.rest()
    w.log.compact(expire=True)
    w.lead()
    w.run(5)
    assert w.models() == [] and "mini" not in w.table.routers
    restarted = RouteTable(GatewayMetrics(), None, 60.0, declared={"mini"})
    w.table, w._gateway_read = restarted, 0
    restarted.set_highest_token(1000)
    w.gateway_reads()
    assert w.is_unknown("mini"), "it does not wait, although other routes may still arrive"
    w.declare("mini")
    w.run(3)
    assert "mini" in w.table.routers and not w.is_unknown("mini")


def test_the_gateway_drops_a_model_whose_deletion_it_missed(tmp_path: Path) -> None:
    """The leader renews all other routes. Without a leader, all routes stay."""
    w = NamesWorld(tmp_path)
    w.declare("a")
    w.run(2)
    w.withdraw("a")
    w.run(3)
    w.table.withdrawn.declare_again("a")
    w.table.apply(next(r for r in _routes(w.log) if r.model == "a" and not r.withdrawn))
    w.now_ms += 3_600_000
    w.table.finalize_unrenewed(0.0)
    w.table.finalize_unrenewed(1000.0)
    assert set(w.table.routers) == {"mini", "a"}, "no leader renews anything"
    w.loop.say_again(w.now_ms)
    w.gateway_reads()
    w.table.finalize_unrenewed(2000.0)
    assert "a" in w.table.routers, "its renewal may still arrive"
    w.table.finalize_unrenewed(2100.0)
    assert set(w.table.routers) == {"mini"}


def _routes(log: Log) -> list[Routes]:
    return [decode("routes", m.value) for m in log.topics["routes"] if m.value is not None]
