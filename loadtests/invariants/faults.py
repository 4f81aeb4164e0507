"""Faults: how each kind changes a world when it begins and when it ends.

Each kind has one function. A new kind needs a function and its name in `scenario.KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from loadtests.extreme import Names, unbelievable
from loadtests.invariants.controller import KEYS
from loadtests.invariants.log import T0
from loadtests.invariants.scenario import Fault
from loadtests.invariants.storage_faults import STORAGE
from topics.alerts import Alert
from topics.codec import encode
from topics.controls import Control
from topics.fleet import Assignment, InstanceState, ObservedInstance
from topics.signing import sign_record
from topics.topic_table import TABLE

if TYPE_CHECKING:
    from loadtests.invariants.gateways import Gateway
    from loadtests.invariants.nodes import Node
    from loadtests.invariants.simulated_run import World

GHOST = 10**6
"""A leader token that no controller claimed."""
_FAR_MS = T0 + 10 * 365 * 86_400_000

Act = Callable[["World", Fault, bool], None]
"""A fault's effect, called with (world, fault, whether it begins)."""


def begin(world: World, fault: Fault) -> None:
    """Begin the fault."""
    _ACTS[fault.kind](world, fault, True)


def end(world: World, fault: Fault) -> None:
    """End the fault and repair its damage."""
    _ACTS[fault.kind](world, fault, False)


def model_of(world: World, fault: Fault) -> str:
    """Return the model that the fault hits."""
    models = [service.model for service in world.cluster.services]
    return models[int(fault.pick * len(models))]


def _gateway(world: World, fault: Fault) -> Gateway:
    return world.gateways[int(fault.pick * len(world.gateways))]


def _node(world: World, fault: Fault) -> Node:
    """Return a node with running instances, if one exists."""
    busy = sorted(name for name, node in world.nodes.items() if node.processes and node.up)
    names = busy or sorted(world.nodes)
    return world.nodes[world.hit.setdefault(fault, names[int(fault.pick * len(names))])]


def _pool(world: World, fault: Fault) -> list[Node]:
    pools = sorted({node.pool for node in world.nodes.values()})
    chosen = pools[int(fault.pick * len(pools))]
    return [node for node in world.nodes.values() if node.pool == chosen]


def _gap(world: World, fault: Fault, begins: bool) -> None:
    for gateway in world.gateways:
        what = "*" if fault.pick < 0.3 else model_of(world, fault)
        (gateway.dropped.add if begins else gateway.dropped.discard)(what)


def _false_zero(world: World, fault: Fault, begins: bool) -> None:
    for gateway in world.gateways:
        (gateway.zero.add if begins else gateway.zero.discard)(model_of(world, fault))


def _strain(world: World, fault: Fault, begins: bool) -> None:
    for gateway in world.gateways:
        if begins:
            gateway.strained[model_of(world, fault)] = world.now_s
        else:
            gateway.strained.pop(model_of(world, fault), None)


def _gateway_cut(world: World, fault: Fault, begins: bool) -> None:
    _gateway(world, fault).link.cut = begins


def _gateway_killed(world: World, fault: Fault, begins: bool) -> None:
    gateway = _gateway(world, fault)
    if begins:
        gateway.up = False
    else:
        gateway.restart()


def _age_wrong(world: World, fault: Fault, begins: bool) -> None:
    wrong_ms = 300_000 if fault.pick < 0.5 else 365 * 86_400_000
    _gateway(world, fault).off_ms = wrong_ms if begins else 0


def _leader_killed(world: World, fault: Fault, begins: bool) -> None:
    if begins:
        leader = world.leader()
        if leader is not None:
            world.kill(leader.name)
    else:
        world.start_all()


def _standby_killed(world: World, fault: Fault, begins: bool) -> None:
    if begins:
        leader = world.leader()
        for name in [n for n, c in world.controllers.items() if c is not leader]:
            world.kill(name)
    else:
        world.start_all()


def _leader_stopped(world: World, fault: Fault, begins: bool) -> None:
    leader = world.leader()
    if begins and leader is not None:
        leader.stopped = True
    elif not begins:
        for controller in world.controllers.values():
            controller.stopped = False


def _leader_cut(world: World, fault: Fault, begins: bool) -> None:
    leader = world.leader()
    if begins and leader is not None:
        leader.link.cut = True
    elif not begins:
        for controller in world.controllers.values():
            controller.link.cut = False


def _away(world: World, fault: Fault, begins: bool) -> None:
    world.log.away = begins


def _broker_clock(world: World, fault: Fault, begins: bool) -> None:
    """The clock is set, and set back at the end."""
    by_ms = (-600_000, -60_000, 60_000, 600_000)[int(fault.pick * 4)]
    world.log.skew_ms += by_ms if begins else -by_ms


def _slow(world: World, fault: Fault, begins: bool) -> None:
    for link in world.links():
        link.slow_s = 0.5 if begins else 0.0


def _copies(world: World, fault: Fault, begins: bool) -> None:
    for link in world.links():
        link.copies = 0.5 if begins else 0.0


def _again(world: World, fault: Fault, begins: bool) -> None:
    for link in world.links():
        link.again = 0.1 if begins else 0.0


def _lost(world: World, fault: Fault, begins: bool) -> None:
    for link in world.links():
        link.lost = 0.2 if begins else 0.0


def _unheard(world: World, fault: Fault, begins: bool) -> None:
    for link in world.links():
        link.unheard = 0.2 if begins else 0.0


def _executor_clock(world: World, fault: Fault, begins: bool) -> None:
    by_ms = (90_000, 3_600_000, -90_000, -3_600_000)[int(fault.pick * 4)]
    for node in world.nodes.values():
        if begins:
            node.wall_skew_ms += by_ms if node.name.encode()[-1] % 2 else -by_ms // 2


def _executor_killed(world: World, fault: Fault, begins: bool) -> None:
    node = _node(world, fault)
    if begins:
        node.executor_up = False
    elif node.up:
        node.restart_executor()


def _lost_node(world: World, fault: Fault, begins: bool) -> None:
    node = _node(world, fault)
    node.lose() if begins else node.come_back()


def _node_cut(world: World, fault: Fault, begins: bool) -> None:
    _node(world, fault).link.cut = begins


def _region_cut(world: World, fault: Fault, begins: bool) -> None:
    region = "us" if fault.pick < 0.5 else "eu"
    for node in world.nodes.values():
        if node.pool.startswith(region):
            node.link.cut = begins


def _fails(world: World, fault: Fault, begins: bool) -> None:
    for node in _pool(world, fault):
        node.fails = begins


def _stuck(world: World, fault: Fault, begins: bool) -> None:
    for node in _pool(world, fault):
        node.stuck = begins


def _engine_killed(world: World, fault: Fault, begins: bool) -> None:
    if begins:
        for process in list(_node(world, fault).processes.values())[:1]:
            process.ends_s = world.now_s


def _prices(world: World, fault: Fault, begins: bool) -> None:
    if not begins:
        return
    for pool in world.cluster.pools:
        usd = pool.price_usd_per_h
        for value in (b"NaN", b"Infinity", b"-1.0", b'"4"', b"%.1f" % (usd * 1000)):
            text = b'{"schema_version":1,"pool":"%s","usd_per_node_h":%s,"observed_ms":%d}' % (
                pool.id.encode(),
                value,
                T0 + int(world.now_s * 1000) + 1,
            )
            world.write("supply.prices", pool.id.encode(), text)


def _poison(world: World, fault: Fault, begins: bool) -> None:
    if begins:
        for topic in TABLE:
            for value in (b"\xff\x00", b"{}", b"[" * 2000, b'{"schema_version":99}', b"null"):
                world.write(topic.name, f"poison-{fault.at_s:.0f}".encode(), value)


def _extreme(world: World, fault: Fault, begins: bool) -> None:
    """Write records with values at their bounds on every topic, when the fault begins and when it
    ends."""
    idle = [name for name, node in sorted(world.nodes.items()) if not node.processes]
    names = Names(
        T0 + int(world.now_s * 1000),
        tuple(service.model for service in world.cluster.services),
        tuple(idle[-1:]) or ("nowhere",),
        tuple(pool.id for pool in world.cluster.pools),
    )
    for topic, key, value in unbelievable(names):
        world.write(topic, key, value)


def _stale_leader(world: World, fault: Fault, begins: bool) -> None:
    """Write an empty assignment with a former leader's token for every node."""
    if not begins or world.log.transactional:
        return  # the broker refuses a former leader's writes
    for node in world.nodes.values():
        found = node.state.assignment
        if found is not None and found.leader_token > 1:
            old = replace(found, instances=(), leader_token=found.leader_token - 1)
            value = encode(sign_record(old, KEYS, _FAR_MS, 900_000))
            world.write("assignments", node.name.encode(), value)


def _forged(world: World, fault: Fault, begins: bool) -> None:
    """Write assignments that are unsigned, signed with another key, or from a leader without a
    claim.
    """
    if not begins:
        return
    for node in world.nodes.values():
        found = node.state.assignment
        if found is None:
            continue
        empty = replace(found, instances=(), generation=found.generation + 1000)
        ghost = Assignment(node.name, node.pool, 1, GHOST, found.issued_ms)
        for value in (
            encode(empty),
            encode(replace(sign_record(found, KEYS, _FAR_MS, 900_000), instances=())),
            encode(sign_record(ghost, KEYS, _FAR_MS, 900_000)),
        ):
            world.write("assignments", node.name.encode(), value)


def _solver_away(world: World, fault: Fault, begins: bool) -> None:
    for controller in world.controllers.values():
        controller.solver.away = begins


def _solver_slow(world: World, fault: Fault, begins: bool) -> None:
    for controller in world.controllers.values():
        controller.solver.slow_s = 20.0 if begins else 0.0


def _storm(world: World, fault: Fault, begins: bool) -> None:
    now_ms = T0 + int(world.now_s * 1000)
    for number in range(50 if begins else 5):
        state = "firing" if begins and number % 3 else "resolved"
        alert = Alert(f"f{number % 7}", "Slow", state, now_ms, (model_of(world, fault),))
        world.publish("alerts", alert.fingerprint, alert)


def _stray(world: World, fault: Fault, begins: bool) -> None:
    node = _node(world, fault)
    found = ObservedInstance(
        f"by-hand-{fault.at_s:.0f}", model_of(world, fault), "aggregated", "by-hand:1",
        InstanceState.READY, (node.gpus - 1,), f"{node.name}:1",
    )  # fmt: skip
    node.foreign = (found,) if begins else ()


def _reclaim(world: World, fault: Fault, begins: bool) -> None:
    node = _node(world, fault)
    if begins:
        node.reclaim_s = fault.until_s
    else:
        node.lose()


def _pause(world: World, fault: Fault, begins: bool) -> None:
    now_ms = T0 + int(world.now_s * 1000)
    world.operator_says(Control(model_of(world, fault), "pause", begins, "ann", "a test", now_ms))


def _leadership_deleted(world: World, fault: Fault, begins: bool) -> None:
    if begins:
        world.log.delete("leadership")
        world.log.create()


_ACTS: dict[str, Act] = {
    "telemetry gap": _gap,
    "false zero": _false_zero,
    "strain": _strain,
    "gateway cut": _gateway_cut,
    "gateway killed": _gateway_killed,
    "gateway age wrong": _age_wrong,
    "leader killed": _leader_killed,
    "leader stopped": _leader_stopped,
    "leader cut": _leader_cut,
    "standby killed": _standby_killed,
    "broker away": _away,
    "broker clock": _broker_clock,
    "slow network": _slow,
    "copies": _copies,
    "read again": _again,
    "lost writes": _lost,
    "no acknowledgement": _unheard,
    "executor clock": _executor_clock,
    "executor killed": _executor_killed,
    "node lost": _lost_node,
    "node cut": _node_cut,
    "region cut": _region_cut,
    "launches fail": _fails,
    "launches stuck": _stuck,
    "engine killed": _engine_killed,
    "prices absurd": _prices,
    "poison": _poison,
    "extreme records": _extreme,
    "stale leader": _stale_leader,
    "forged": _forged,
    "solver away": _solver_away,
    "solver slow": _solver_slow,
    "alert storm": _storm,
    "stray": _stray,
    "reclaim": _reclaim,
    "pause": _pause,
    "leadership deleted": _leadership_deleted,
    **STORAGE,
}
