"""Probe schedule of the engines of one node: starts due probes and keeps their results.

Probes run in tasks, so that a step of the node never waits for an engine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import aiohttp

from executors.engines.engine_protocol import Contact, EngineKind, Load
from executors.node.engine_probes import EngineProbe, ProbeResult, ProbeTimeouts
from executors.node.node_state import InstanceRecord
from topics.fleet import InstanceState

log = logging.getLogger(__name__)

_PROBE_INTERVAL_S = {  # real s between two probes of an engine
    InstanceState.STARTING: 0.1,
    InstanceState.READY: 2.0,
    InstanceState.SWITCHING: 0.1,
    InstanceState.DRAINING: 0.1,
}


Reach = Callable[[InstanceRecord, object], tuple[str, str] | None]
"""The address ("host:port") and the API key of an instance's engine; None if neither is known
yet."""


class ProbeSchedule:
    """The probes of all engines of one node. An engine is any object that represents one launch."""

    def __init__(
        self,
        kinds: Mapping[str, EngineKind],
        client: aiohttp.ClientSession,
        reach: Reach,
        timeouts: ProbeTimeouts,
    ) -> None:
        self._kinds = kinds
        self._client = client
        self._reach = reach
        self._timeouts = timeouts
        self._probes: dict[str, tuple[object, EngineProbe]] = {}
        self._results: dict[str, tuple[object, ProbeResult, int]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._next_s: dict[str, float] = {}

    def take_result(self, instance: str, engine: object) -> tuple[ProbeResult, int] | None:
        """The latest result for `engine` since the last call, and when the probe began (domain
        ms).

        Results of earlier engines of the instance are discarded.
        """
        probed, result, at_ms = self._results.pop(instance, (None, ProbeResult(None), 0))
        return (result, at_ms) if probed is engine else None

    def start_probe(self, item: InstanceRecord, engine: object, now_ms: int, now_s: float) -> None:
        """Start the probe that matches the state of `item`, if it is due and none is running."""
        every_s = _PROBE_INTERVAL_S.get(item.state)
        kind = self._kinds.get(item.desired.engine)
        # Do not probe an adopted engine that is no longer configured.
        if every_s is None or kind is None or item.instance in self._tasks:
            return
        if now_s < self._next_s.get(item.instance, 0.0):
            return
        self._next_s[item.instance] = now_s + every_s
        if item.desired.gang is not None and not item.desired.gang.leads:
            # Only rank 0 serves HTTP. For other ranks a living process suffices: tokens from rank 0
            # prove that all ranks work.
            self._results[item.instance] = engine, ProbeResult(True, Load(0, 0)), now_ms
            return
        task = asyncio.create_task(self._probe(item, engine, kind, now_ms))
        self._tasks[item.instance] = task
        task.add_done_callback(partial(self._probe_done, item.instance))

    def forget(self, instance: str) -> None:
        """Drop the probe and results of an instance whose process is gone."""
        self._results.pop(instance, None)
        self._next_s.pop(instance, None)
        _, probe = self._probes.pop(instance, (None, None))
        if probe is not None:
            probe.close()

    async def close(self) -> None:
        """Cancel all probes."""
        for instance in list(self._probes):
            self.forget(instance)
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _probe_done(self, instance: str, task: asyncio.Task[None]) -> None:
        self._tasks.pop(instance, None)
        if not task.cancelled() and task.exception() is not None:
            log.error("%s: probe failed", instance, exc_info=task.exception())

    async def _probe(
        self, item: InstanceRecord, engine: object, kind: EngineKind, at_ms: int
    ) -> None:
        probed, probe = self._probes.get(item.instance, (None, None))
        if probe is None or probed is not engine:
            reached = self._reach(item, engine)
            if reached is None:
                return
            endpoint, key = reached
            contact = Contact(self._client, endpoint, item.desired.model, key)
            probe = EngineProbe(kind, contact, self._timeouts)
            self._probes[item.instance] = engine, probe
        if item.state is InstanceState.READY:
            result = await probe.check_live()
        elif item.state is InstanceState.DRAINING and item.sleep_ms and not item.terminated_ms:
            result = await probe.put_to_sleep()
        elif item.state is InstanceState.STARTING and item.sleep_ms:
            result = await probe.wake_up()
        elif item.state is InstanceState.DRAINING or item.terminated_ms:
            result = ProbeResult(None, await probe.load())
        else:
            result = await probe.check_ready()
            if item.state is InstanceState.SWITCHING:
                result = replace(result, load=await probe.load())
        self._results[item.instance] = engine, result, at_ms
