"""Adoption of the engines that an earlier executor process left on a node.

It decides which processes are adopted and which are killed. No engine may start on the node before
that, because an unknown engine may hold the GPUs.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from executors.node import procfs
from executors.node.containers import CONTAINER_VARIABLE, Container
from executors.node.engine_environment import LaunchTag
from executors.node.node_state import InstanceRecord, NodeState
from executors.node.os_processes import EngineProcess, tagged_processes
from executors.node.state_store import RecordedProcess, StateStore
from topics.fleet import InstanceState

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StrayProcess:
    """A process of an earlier launch that is being killed. gpus: None if unknown."""

    process: EngineProcess
    gpus: frozenset[int] | None


@dataclass(slots=True)
class AdoptionResult:
    """The node after adoption.

    unrecorded: number of `processes` without a record in the state file. strays: killed processes,
    whose GPUs stay blocked until the processes are gone.
    """

    state: NodeState
    processes: dict[str, EngineProcess] = field(default_factory=dict)
    unrecorded: int = 0
    strays: list[StrayProcess] = field(default_factory=list)


def adopt_engines(
    state: NodeState,
    recorded: Mapping[str, RecordedProcess],
    store: StateStore,
    advertise: str,
    now_ms: int,
) -> AdoptionResult:
    """The restored `state` with all engines that are still running. A recorded process must match
    in pid, start time and launch. A complete engine without a record, whose executor died before it
    saved the state or wrote another form, is adopted as STARTING from `now_ms`: an old one has time
    to answer the first probe. Workers without a leader and duplicates are killed.
    """
    found = AdoptionResult(state)
    state_dir = str(store.folder)
    whole: list[tuple[procfs.Process, LaunchTag]] = []
    parts: dict[int, tuple[procfs.Process, LaunchTag | None]] = {}
    leading: dict[str, int] = {}
    there = tagged_processes(state_dir).get(state.node, [])
    for process, tag in sorted(there, key=lambda pair: pair[0].started):
        leads = process.pid == process.group
        # An engine in a container has two leaders: the runtime's client, which is the older one and
        # is adopted, and the engine itself.
        if tag and leads and leading.setdefault(tag.launch, process.pid) == process.pid:
            whole.append((process, tag))
        else:
            parts[process.group] = (process, tag)

    def engine(process: procfs.Process, tag: LaunchTag | None) -> EngineProcess:
        leads = process.pid == process.group
        instance, at_ms = (tag.desired.instance, tag.launched_ms) if tag else ("unknown", 0)
        log_path = store.logs.path(instance, at_ms)
        launch = tag.launch if tag else ""
        started = process.started if leads else 0
        container = Container.from_variable(
            procfs.environment(process.pid).get(CONTAINER_VARIABLE, "")
        )
        return EngineProcess(
            process.group, started, launch, state_dir, log_path, container=container
        )

    def put_down(process: procfs.Process, tag: LaunchTag | None) -> None:
        log.warning("%s: killing pid %d of an earlier launch", state.node, process.pid)
        stray = engine(process, tag)
        stray.kill()
        found.strays.append(StrayProcess(stray, frozenset(tag.desired.gpus) if tag else None))

    unknown = []
    named = {row: instance for instance, row in recorded.items()}
    for process, tag in whole:
        # Use the recorded id, because the launch tag of a woken standby has another instance id.
        name = named.get(RecordedProcess(process.pid, process.started, tag.launch))
        if name is not None:
            found.processes[name] = engine(process, tag)
        else:
            unknown.append((process, tag))
    # The oldest engine on a GPU is adopted; engines that started later are duplicates.
    for process, tag in sorted(unknown, key=lambda pair: pair[0].started):
        if _is_free(tag, found):
            found.processes[tag.desired.instance] = engine(process, tag)
            found.state = _with_unrecorded(found.state, tag, advertise, now_ms)
            found.unrecorded += 1
            name = tag.desired.instance
            log.warning(
                "%s: adopted %s (pid %d), which had no record", state.node, name, process.pid
            )
        else:
            put_down(process, tag)
    alive = {process.pid for process, _ in whole}
    for group, (process, tag) in parts.items():
        if group not in alive and (tag is None or tag.launch not in leading):
            put_down(process, tag)
    return found


def _is_free(tag: LaunchTag, found: AdoptionResult) -> bool:
    """Whether no adopted engine has the instance id or the GPUs of `tag`."""
    for item in found.state.instances:
        if item.instance not in found.processes:
            continue
        if item.instance == tag.desired.instance or {*item.desired.gpus} & {*tag.desired.gpus}:
            return False
    return True


def _with_unrecorded(state: NodeState, tag: LaunchTag, advertise: str, now_ms: int) -> NodeState:
    records = {item.instance: item for item in state.instances}
    old, gang = records.get(tag.desired.instance), tag.desired.gang
    records[tag.desired.instance] = InstanceRecord(
        desired=tag.desired,
        state=InstanceState.STARTING,
        since_ms=now_ms,
        phase=tag.desired.phase,
        has_process=True,
        endpoint=f"{advertise}:{tag.ports[0]}" if gang is None or gang.leads else "",
        ports=tag.ports,
        launched_ms=tag.launched_ms,
        restarts=old.restarts if old else 0,
        failures=old.failures if old else 0,
    )
    return replace(state, instances=tuple(records.values()))
