"""Start, failure and drain of instances in the simulated worlds of these tests."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from topics.fleet import DesiredInstance, InstanceState, ObservedInstance
from topics.launch_version import template_part

if TYPE_CHECKING:
    from tests.unit.decide.decide_world import World

# An instance is reported each second but rarely changes, so only a changed record is checked.
_said = lru_cache(maxsize=4096)(ObservedInstance)


def observed(w: World, i: DesiredInstance, where: str, node: str) -> ObservedInstance:
    """The present report about instance `i` by the executor of `node` in pool `where`."""
    launched = w.launched.setdefault(i.instance, w.now_ms)
    ready_ms = launched + w.start_s * 1000
    # An executor launches the template that the version names if it knows it.
    named = template_part(i.version)
    known = named in w.launched_from.values()
    template = w.launched_from.setdefault(
        i.instance, named if known else w.templates.get(where, "")
    )
    state, since = InstanceState.STARTING, launched
    if i.drain:
        since = w.draining.setdefault(i.instance, w.now_ms)
        held = i.model in w.busy
        over = w.now_ms - since >= w.drain_s * 1000 and not held
        state = InstanceState.STOPPED if over else InstanceState.DRAINING
    elif (
        w.failing & {where, node, i.instance, i.engine, template} and w.now_ms >= launched + 20_000
    ):
        state = InstanceState.FAILED
    elif not w.stuck & {where, i.engine} and w.now_ms >= ready_ms:
        state, since = InstanceState.READY, ready_ms
    first = w.phases.setdefault(i.instance, i.phase)
    phase = first if i.instance in w.stubborn else i.phase
    listens = state in (InstanceState.READY, InstanceState.DRAINING)
    names = (i.instance, node, where)
    start = next((w.starts[name] for name in names if name in w.starts), None)
    return _said(
        i.instance,
        i.model,
        phase,
        i.group,
        state,
        i.gpus,
        endpoint="127.0.0.1:9000" if listens else "",
        since_ms=since,
        launched_ms=launched,
        in_flight=3 if i.model in w.busy else 0,
        reason="no CUDA device" if state is InstanceState.FAILED else "",
        pool_full=state is InstanceState.FAILED and where in w.full,
        engine=i.engine,
        finished=w.finished[i.instance],
        start=start if listens or state is InstanceState.FAILED else None,
        restarts=(w.now_ms - ready_ms) // 30_000 if i.engine in w.crashing and listens else 0,
        version=i.version,
        template=template,
    )
