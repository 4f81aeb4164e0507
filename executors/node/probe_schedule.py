"""Questions to the engines of one node: when they are due, and what was answered.

Holds the tasks that wait for engines, so that a step of the node never does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import aiohttp

from executors.engines.engine_protocol import API_KEY, Contact, EngineKind, Load
from executors.node import procfs
from executors.node.engine_probes import Answered, Patience, Watch
from executors.node.node_state import Held
from executors.node.os_processes import EngineProcess
from topics.fleet import InstanceState

log = logging.getLogger(__name__)

_EVERY_S = {  # real s between two looks at an engine
    InstanceState.STARTING: 0.1,
    InstanceState.READY: 2.0,
    InstanceState.SWITCHING: 0.1,
    InstanceState.DRAINING: 0.1,
}


class Asking:
    """All engines of one node. host: the address at which they answer."""

    def __init__(
        self,
        kinds: Mapping[str, EngineKind],
        client: aiohttp.ClientSession,
        host: str,
        patience: Patience,
    ) -> None:
        self._kinds = kinds
        self._client = client
        self._host = host
        self._patience = patience
        self._watches: dict[str, tuple[EngineProcess, Watch]] = {}
        self._answers: dict[str, tuple[EngineProcess, Answered, int]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._next_s: dict[str, float] = {}

    def answer(self, instance: str, process: EngineProcess) -> tuple[Answered, int] | None:
        """What `process` answered since this was last called, and when it was asked (domain ms).

        An answer of an earlier process says nothing about the present one.
        """
        asked, answered, at_ms = self._answers.pop(instance, (None, Answered(None), 0))
        return (answered, at_ms) if asked is process else None

    def ask(self, item: Held, process: EngineProcess, now_ms: int, now_s: float) -> None:
        """Ask `item` what its state calls for, if that is due and nothing is under way."""
        every_s = _EVERY_S.get(item.state)
        kind = self._kinds.get(item.desired.engine)
        # One whose engine left the configuration was adopted: it stays as it is.
        if every_s is None or kind is None or item.instance in self._tasks:
            return
        if now_s < self._next_s.get(item.instance, 0.0):
            return
        self._next_s[item.instance] = now_s + every_s
        if item.desired.gang is not None and not item.desired.gang.leads:
            # It answers nobody. It is as well as its process; rank 0's tokens prove all of them.
            self._answers[item.instance] = process, Answered(True, Load(0, 0)), now_ms
            return
        task = asyncio.create_task(self._ask(item, process, kind, now_ms))
        self._tasks[item.instance] = task
        task.add_done_callback(partial(self._asked, item.instance))

    def forget(self, instance: str) -> None:
        """Its process is gone."""
        self._answers.pop(instance, None)
        self._next_s.pop(instance, None)
        _, watch = self._watches.pop(instance, (None, None))
        if watch is not None:
            watch.close()

    async def close(self) -> None:
        """Stop asking."""
        for instance in list(self._watches):
            self.forget(instance)
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _asked(self, instance: str, task: asyncio.Task[None]) -> None:
        self._tasks.pop(instance, None)
        if not task.cancelled() and task.exception() is not None:
            log.error("%s: asking failed", instance, exc_info=task.exception())

    async def _ask(self, item: Held, process: EngineProcess, kind: EngineKind, at_ms: int) -> None:
        asked, watch = self._watches.get(item.instance, (None, None))
        if watch is None or asked is not process:
            # Its own: one that was adopted may have been started with another key than today's.
            given = procfs.environment_now(process.pid)
            if given is not None and not given:
                return  # a wrapper becomes the engine just now, with the same variables
            key = (given or {}).get(API_KEY, "")
            endpoint = f"{self._host}:{item.ports[0]}"
            contact = Contact(self._client, endpoint, item.desired.model, key)
            watch = Watch(kind, contact, self._patience)
            self._watches[item.instance] = process, watch
        if item.state is InstanceState.READY:
            answered = await watch.again()
        elif item.state is InstanceState.DRAINING and item.sleep_ms and not item.terminated_ms:
            answered = await watch.asleep()
        elif item.state is InstanceState.STARTING and item.sleep_ms:
            answered = await watch.woken()
        elif item.state is InstanceState.DRAINING or item.terminated_ms:
            answered = Answered(None, await watch.load())
        else:
            answered = await watch.first()
            if item.state is InstanceState.SWITCHING:
                answered = replace(answered, load=await watch.load())
        self._answers[item.instance] = process, answered, at_ms
