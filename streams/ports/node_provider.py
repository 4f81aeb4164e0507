"""Port: create and delete nodes with the operator's command.

Compares the nodes that have assignments to the existing nodes, and sends requests to the command:
JSON on its standard input, JSON on its standard output, within a time limit
(docs/how-to/provisioning.md). A node exists while instances are assigned to it. A node that cannot
be created is reported as a status with failed instances, so that its pool backs off. A created node
that never reports is detected by the start time-out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shlex
import signal
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping, MutableMapping
from typing import Any, BinaryIO

import orjson

from autoscaler.domain.cluster import Cluster, Pool
from autoscaler.domain.node_names import node_ids
from streams.files.user_errors import UserError
from topics.fleet import Assignment, InstanceState, ObservedInstance, Status

log = logging.getLogger(__name__)

EXECUTOR = "provisioner"
_EVERY_S = 5.0
_IDLE_S = 60.0
_LIST_LIMIT_S, _CREATE_LIMIT_S, _DELETE_LIMIT_S = 30.0, 120.0, 60.0
_MOST_AT_ONCE = 16
_HEARD_LATELY_MS = 60_000
_ENDED = (InstanceState.STOPPED, InstanceState.FAILED, InstanceState.ASLEEP)


class HookFailed(Exception):
    """The command failed, took too long, or gave an invalid answer."""


class Provisioner:
    """Creates and deletes the nodes of pools that declare a command. Times are in real seconds.

    hooks: command line by pool id. assignments, statuses: the latest by node. This class adds
    statuses of nodes that it could not create. acting: whether changes are allowed now.
    """

    def __init__(
        self,
        hooks: Mapping[str, str],
        cluster: Callable[[], Cluster],
        assignments: Mapping[str, Assignment],
        statuses: MutableMapping[str, Status],
        acting: Callable[[], bool],
        now_ms: Callable[[], int],
    ) -> None:
        self._hooks = {pool: _words(pool, line) for pool, line in hooks.items()}
        self._cluster = cluster
        self._assignments = assignments
        self._statuses = statuses
        self._acting = acting
        self._now_ms = now_ms
        self._asked: dict[str, frozenset[str]] = {}  # instances for which each node was requested
        self._idle_since_s: dict[str, float] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._room = asyncio.Semaphore(_MOST_AT_ONCE)
        self._failing: set[tuple[str, ...]] = set()

    async def run(self) -> None:
        """Create and delete nodes until cancelled; then kill running commands."""
        try:
            while True:
                if self._acting():
                    await self.step(time.monotonic())
                await asyncio.sleep(_EVERY_S)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def step(self, now_s: float) -> None:
        """Compare assigned and existing nodes once. If the command does not list the nodes, nothing
        changes.
        """
        self._take_back()
        pools = {pool.id: pool for pool in self._cluster().pools if pool.id in self._hooks}
        for command in sorted(set(self._hooks.values())):
            own = [pool for pool in pools.values() if self._hooks[pool.id] == command]
            try:
                question = {"action": "list", "pools": [pool.id for pool in own]}
                there = _names(await ask(command, question, _LIST_LIMIT_S))
            except HookFailed as error:
                if command not in self._failing:
                    log.error("provision command %s: list: %s", command[0], error)
                self._failing.add(command)
                continue
            self._failing.discard(command)
            for pool in own:
                self._compare(pool, command, there, now_s)

    # -- internal ----------------------------------------------------------------------------

    def _compare(
        self, pool: Pool, command: tuple[str, ...], there: frozenset[str], now_s: float
    ) -> None:
        for node in node_ids(pool):
            if node in self._tasks:
                continue
            assignment = self._assignments.get(node)
            wanted = frozenset(i.instance for i in assignment.instances) if assignment else None
            if wanted:
                self._idle_since_s.pop(node, None)
                # Request each set of instances once: after a failure the plan changes.
                if node not in there and not wanted & self._asked.get(node, frozenset()):
                    self._asked[node] = wanted
                    self._begin(node, self._create(pool, command, node))
                continue
            self._asked.pop(node, None)
            if node not in there or self._runs(node):
                self._idle_since_s.pop(node, None)
                continue
            since_s = self._idle_since_s.setdefault(node, now_s)
            if now_s - since_s >= _IDLE_S:
                del self._idle_since_s[node]
                self._begin(node, self._delete(command, node))

    def _runs(self, node: str) -> bool:
        status = self._statuses.get(node)
        return status is not None and any(i.state not in _ENDED for i in status.instances)

    def _begin(self, node: str, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks[node] = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._tasks.pop(node, None))

    async def _create(self, pool: Pool, command: tuple[str, ...], node: str) -> None:
        question = {
            "action": "create",
            "node": node,
            "region": pool.region,
            "pool": pool.name,
            "market": str(pool.market),
            "gpu": pool.gpu.name,
            "gpus": pool.per_node,
        }
        try:
            async with self._room:
                await ask(command, question, _CREATE_LIMIT_S)
        except HookFailed as error:
            log.error("%s: the node could not be created: %s", node, error)
            self._tell_failed(node, f"the node could not be created: {error}")
        else:
            log.info("%s: created", node)

    async def _delete(self, command: tuple[str, ...], node: str) -> None:
        try:
            async with self._room:
                await ask(command, {"action": "delete", "node": node}, _DELETE_LIMIT_S)
        except HookFailed as error:
            log.error("%s: the node could not be deleted, and is paid for: %s", node, error)
        else:
            log.info("%s: deleted", node)

    def _tell_failed(self, node: str, why: str) -> None:
        """Report a status of `node` with failed instances, as its executor does if engines do not
        start."""
        assignment, now_ms = self._assignments.get(node), self._now_ms()
        known = self._statuses.get(node)
        heard_ms = known.at_ms if known is not None and known.executor != EXECUTOR else 0
        if assignment is None or (heard_ms and now_ms - heard_ms < _HEARD_LATELY_MS):
            return
        failed = tuple(
            ObservedInstance(
                wish.instance, wish.model, wish.phase, wish.group, InstanceState.FAILED, wish.gpus,
                since_ms=now_ms, reason=why[:2000],
            )
            for wish in assignment.instances
        )  # fmt: skip
        self._statuses[node] = Status(
            node, assignment.pool, EXECUTOR, assignment.generation, now_ms, failed
        )

    def _take_back(self) -> None:
        """Remove the failed status of a node once no failed instance of the status is assigned to
        the node."""
        for node, status in list(self._statuses.items()):
            if status.executor != EXECUTOR:
                continue
            assignment = self._assignments.get(node)
            wanted = {wish.instance for wish in assignment.instances} if assignment else set()
            if not wanted & {seen.instance for seen in status.instances}:
                del self._statuses[node]


async def ask(
    command: tuple[str, ...], question: Mapping[str, object], limit_s: float
) -> Mapping[str, Any]:
    """The command's answer to one request.

    HookFailed if no answer comes within `limit_s`. The message ends with the last line of the
    command's standard error, if a temporary file for it could be created.
    """
    with contextlib.ExitStack() as stack:
        aside: BinaryIO | None = None
        with contextlib.suppress(OSError):  # There is no folder for temporary files.
            # Use no pipe: a background process of the command could hold a pipe open.
            aside = stack.enter_context(tempfile.TemporaryFile())
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL if aside is None else aside,
                start_new_session=True,
            )
        except OSError as error:
            raise HookFailed(f"{command[0]}: {error.strerror}") from None
        try:
            said, _ = await asyncio.wait_for(process.communicate(orjson.dumps(question)), limit_s)
        except TimeoutError:
            raise HookFailed(f"no answer within {limit_s:g} s{_last_line(aside)}") from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        if process.returncode:
            raise HookFailed(f"exit code {process.returncode}{_last_line(aside)}")
    try:
        answer = orjson.loads(said or b"{}")
    except orjson.JSONDecodeError:
        raise HookFailed(f"{said[:80]!r} is no JSON") from None
    if not isinstance(answer, dict):
        raise HookFailed("a JSON object is expected")
    if answer.get("error"):
        raise HookFailed(str(answer["error"])[:500])
    return answer


def _last_line(file: BinaryIO | None) -> str:
    """ ": " and the last non-empty line in `file`, at most 300 characters of the line."""
    if file is None:
        return ""
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - 4096))
    lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return f": {lines[-1].strip()[:300]}" if lines else ""


def _names(answer: Mapping[str, Any]) -> frozenset[str]:
    nodes = answer.get("nodes")
    if not isinstance(nodes, list) or not all(isinstance(node, str) for node in nodes):
        raise HookFailed('"nodes" must be a list of names')
    return frozenset(nodes)


def _words(pool: str, line: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(line))
    except ValueError as error:
        raise UserError(f"provision of {pool}: {error}") from None
    if not words:
        raise UserError(f"provision of {pool}: a command is expected")
    return words
