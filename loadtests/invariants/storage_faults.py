"""Faults of the broker's storage, of the disk, and of leadership at any moment.

`begin` and `end` of a fault are in `faults`; `each_second` runs while a fault lasts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from loadtests.invariants.log import COMPACTED
from loadtests.invariants.scenario import Fault

if TYPE_CHECKING:
    from loadtests.invariants.simulated_run import World

Act = Callable[["World", Fault, bool], None]
_MOST_FUSE = 60
_OPERATED = ("services", "controls", "leadership")
"""Topics on which a tombstone is an operator's command or ends a leader's claim."""


def each_second(world: World) -> None:
    """Continue the present faults."""
    rng, active = world.rng, world.active
    if active.get("compaction") and rng.random() < 0.3:
        world.log.compact(rng, expire=False)
    if active.get("keys deleted") and rng.random() < 0.5:
        world.log.compact(rng, expire=True)
    if active.get("leader changes"):
        leader = world.leader()
        if leader is not None and leader.link.fuse < 0 and rng.random() < 0.15:
            leader.link.fuse = rng.randint(0, _MOST_FUSE)
        if rng.random() < 0.3:
            world.start_all()


def _keys_deleted(world: World, fault: Fault, begins: bool) -> None:
    """Write tombstones for half of the keys that are in use. They expire at once."""
    if not begins:
        return
    for name in COMPACTED:
        for key, entry in world.log.last(name).items() if name not in _OPERATED else ():
            if key is not None and entry.value is not None and world.rng.random() < 0.5:
                world.write(name, key, None)


def _topic_deleted(world: World, fault: Fault, begins: bool) -> None:
    """Delete a compacted topic. A controller creates it again; at the latest, an operator does."""
    if begins:
        world.log.delete(COMPACTED[int(fault.pick * len(COMPACTED))])
    else:
        world.log.create()


def _misplaced(world: World, fault: Fault, begins: bool) -> None:
    world.log.misplaced = begins


def _leader_changes(world: World, fault: Fault, begins: bool) -> None:
    if not begins:
        for controller in world.controllers.values():
            controller.link.fuse = -1
        world.start_all()


def _disk_full(world: World, fault: Fault, begins: bool) -> None:
    world.disk.begin_fault(fault.pick < 0.6) if begins else world.disk.end_fault()


def _nothing(world: World, fault: Fault, begins: bool) -> None:
    pass


STORAGE: dict[str, Act] = {
    "compaction": _nothing,
    "keys deleted": _keys_deleted,
    "topic deleted": _topic_deleted,
    "wrong partitions": _misplaced,
    "leader changes": _leader_changes,
    "disk full": _disk_full,
}
