"""Computes the costs of other fleets for the page, in a process that lives while a page is open.

The process uses at most a fiftieth of a core on average. The first answer does not count, because
it includes the start of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable

import orjson

from streams.console.cost_windows import CostWindows
from streams.solver.other_fleets import LIMIT_S, Answer, Question
from topics.checks import InvalidValue
from topics.codec import read_value, write_value
from topics.edge.supervision import supervision_fds
from topics.error_text import error_text

log = logging.getLogger(__name__)

_EVERY_S = 2.0
_SHARE = 0.02
_START_S = 180.0
_FAILED_S = 300.0
_MOST_LINE_BYTES = 16 << 20


class OtherFleetsFeed:
    """Asks for the costs of the windows that have none. is_viewed: whether a page is open. now_ms:
    domain time. argv: the command of the process."""

    def __init__(
        self,
        windows: CostWindows,
        is_viewed: Callable[[], bool],
        now_ms: Callable[[], int],
        argv: tuple[str, ...] = (sys.executable, "-m", "streams.solver.other_fleets"),
    ) -> None:
        self._windows = windows
        self._is_viewed = is_viewed
        self._now_ms = now_ms
        self._argv = argv
        self._process: asyncio.subprocess.Process | None = None

    async def run(self) -> None:
        """Ask and store until cancelled; then end the process."""
        try:
            while True:
                await asyncio.sleep(await self.step())
        finally:
            await self._kill()

    async def step(self) -> float:
        """Ask once if a window waits and a page is open. Returns the real seconds until the next
        step."""
        if not self._is_viewed():
            await self._kill()
            return _EVERY_S
        waiting = self._windows.question()
        if waiting is None:
            return _EVERY_S
        question, asked = waiting
        is_first = self._process is None
        try:
            async with asyncio.timeout(LIMIT_S + _START_S):
                found = await self._answer(question)
        except (TimeoutError, OSError, EOFError, ValueError, InvalidValue) as error:
            log.warning(
                "console: costs of other fleets: %s", error_text(error, "no answer in time")
            )
            await self._kill()
            return _FAILED_S
        self._windows.answer(asked, question.peaks, found, self._now_ms())
        return _EVERY_S if is_first else max(_EVERY_S, found.cpu_s / _SHARE)

    async def _answer(self, question: Question) -> Answer:
        process = self._process
        if process is None:
            process = self._process = await asyncio.create_subprocess_exec(
                *self._argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=_MOST_LINE_BYTES,
                pass_fds=supervision_fds(),
            )
        assert process.stdin is not None and process.stdout is not None  # noqa: S101  pipes
        process.stdin.write(write_value(question) + b"\n")
        await process.stdin.drain()
        line = await process.stdout.readline()
        if not line:
            raise EOFError(f"exit code {await process.wait()}")
        found: Answer = read_value(Answer, orjson.loads(line))
        return found

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
