"""Taking over what an earlier life of this executor left on a node.

Holds who is adopted and who is killed. Nothing may be started on the node before this: an engine
that nobody knows holds its GPUs.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from executors.node import procfs
from executors.node.containers import VARIABLE, Container
from executors.node.engine_environment import Tag
from executors.node.node_state import Held, NodeState
from executors.node.os_processes import EngineProcess, of_folder
from executors.node.state_store import Recorded, Store
from topics.fleet import InstanceState

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stray:
    """What is left of a launch that is over. gpus: None where nobody knows which it holds."""

    process: EngineProcess
    gpus: frozenset[int] | None


@dataclass(slots=True)
class Adopted:
    """The node after it was looked over. unrecorded: engines among `processes` that no record
    named. strays: were killed; until they are gone their GPUs are taken."""

    state: NodeState
    processes: dict[str, EngineProcess] = field(default_factory=dict)
    unrecorded: int = 0
    strays: list[Stray] = field(default_factory=list)


def take_over(
    state: NodeState, recorded: Mapping[str, Recorded], store: Store, advertise: str
) -> Adopted:
    """`state` as restored, with the engines that still run.

    A recorded process must be the same one: pid, start time and launch, which names its ports. A
    whole engine that nobody wrote down (we died between its start and the next write) is taken over
    as starting. What is left of an engine whose leader is gone, and what is there twice, is killed.
    """
    found = Adopted(state)
    state_dir = str(store.folder)
    whole: list[tuple[procfs.Process, Tag]] = []
    parts: dict[int, tuple[procfs.Process, Tag | None]] = {}
    leading: dict[str, int] = {}
    there = of_folder(state_dir).get(state.node, [])
    for process, tag in sorted(there, key=lambda pair: pair[0].started):
        leads = process.pid == process.group
        # An engine in a container leads a group too; its client was there first.
        if tag and leads and leading.setdefault(tag.launch, process.pid) == process.pid:
            whole.append((process, tag))
        else:
            parts[process.group] = (process, tag)

    def engine(process: procfs.Process, tag: Tag | None) -> EngineProcess:
        leads = process.pid == process.group
        instance, at_ms = (tag.desired.instance, tag.launched_ms) if tag else ("unknown", 0)
        log_path = store.logs.path(instance, at_ms)
        launch = tag.launch if tag else ""
        started = process.started if leads else 0
        container = Container.named(procfs.environment(process.pid).get(VARIABLE, ""))
        return EngineProcess(
            process.group, started, launch, state_dir, log_path, container=container
        )

    def put_down(process: procfs.Process, tag: Tag | None) -> None:
        log.warning("%s: killing pid %d, left of an earlier launch", state.node, process.pid)
        stray = engine(process, tag)
        stray.kill()
        found.strays.append(Stray(stray, frozenset(tag.desired.gpus) if tag else None))

    unknown = []
    named = {row: instance for instance, row in recorded.items()}
    for process, tag in whole:
        # One that slept and was woken serves under another name than it was started with.
        name = named.get(Recorded(process.pid, process.started, tag.launch))
        if name is not None:
            found.processes[name] = engine(process, tag)
        else:
            unknown.append((process, tag))
    # The first one started counts: a later one on its GPUs is the double.
    for process, tag in sorted(unknown, key=lambda pair: pair[0].started):
        if _is_free(tag, found):
            found.processes[tag.desired.instance] = engine(process, tag)
            found.state = _with_unrecorded(found.state, tag, advertise)
            found.unrecorded += 1
            name = tag.desired.instance
            log.warning("%s: took over %s (pid %d) unrecorded", state.node, name, process.pid)
        else:
            put_down(process, tag)
    alive = {process.pid for process, _ in whole}
    for group, (process, tag) in parts.items():
        if group not in alive and (tag is None or tag.launch not in leading):
            put_down(process, tag)
    return found


def _is_free(tag: Tag, found: Adopted) -> bool:
    """Whether its instance and its GPUs belong to no engine that was taken over already."""
    for item in found.state.held:
        if item.instance not in found.processes:
            continue
        if item.instance == tag.desired.instance or {*item.desired.gpus} & {*tag.desired.gpus}:
            return False
    return True


def _with_unrecorded(state: NodeState, tag: Tag, advertise: str) -> NodeState:
    held = {item.instance: item for item in state.held}
    old, gang = held.get(tag.desired.instance), tag.desired.gang
    held[tag.desired.instance] = Held(
        desired=tag.desired,
        state=InstanceState.STARTING,
        since_ms=tag.launched_ms,
        phase=tag.desired.phase,
        process=True,
        endpoint=f"{advertise}:{tag.ports[0]}" if gang is None or gang.leads else "",
        ports=tag.ports,
        launched_ms=tag.launched_ms,
        restarts=old.restarts if old else 0,
        failures=old.failures if old else 0,
    )
    return replace(state, held=tuple(held.values()))
