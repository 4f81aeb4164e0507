"""The controller's end of the solver: questions go out, answers come into a later observation.

Owns the solver process: one question at a time, a limit on each, killed and started again when it
does not answer. Tables are asked for one model at a time, so that the first model need not wait
for the last. A question that waits is replaced by a newer one of its kind and model; an answer
that never comes is an answer of its own (`Refinement.timed_out`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autoscaler.controller_state import Refinement
from autoscaler.domain.cluster import Cluster, Mode
from autoscaler.effects import RefinementRequested, ScaleOutTablesRequested
from autoscaler.planning.tables import ModelTable
from streams.solver.wire import Answer, Question, answered, ask
from streams.supervision import supervision_fd

log = logging.getLogger(__name__)

LIMIT_S: Mapping[type, float] = {ScaleOutTablesRequested: 60.0, RefinementRequested: 60.0}
"""Real seconds for one answer, the start of the process included."""

_MOST_LINE_BYTES = 64 * 1024 * 1024


def solver_argv(config: Path, default_mode: Mode) -> list[str]:
    """The command line of the solver process."""
    return [
        sys.executable, "-m", "streams.solver",
        "--config", str(config), "--default-mode", str(default_mode),
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Answers:
    """What came in since it was last asked."""

    tables: tuple[ModelTable, ...] = ()
    refinements: tuple[Refinement, ...] = ()


@dataclass(slots=True)
class _Waiting:
    """Questions not asked yet, in order: at most one refinement, and one table per model."""

    by_subject: dict[str, tuple[Question, Cluster]] = field(default_factory=dict)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, subject: str, question: Question, cluster: Cluster) -> Question | None:
        """Queue it; the question that it replaces."""
        replaced = self.by_subject.get(subject)
        self.by_subject[subject] = (question, cluster)
        self.news.set()
        return replaced[0] if replaced else None


class Solver:
    """argv: how to start the process. limit_s: as LIMIT_S. Run `run` beside the ticks."""

    def __init__(self, argv: Sequence[str], limit_s: Mapping[type, float] = LIMIT_S) -> None:
        self._argv = tuple(argv)
        self._limit_s = limit_s
        self._process: asyncio.subprocess.Process | None = None
        self._waiting = _Waiting()
        self._tables: list[ModelTable] = []
        self._refinements: list[Refinement] = []
        self._number = 0
        self.killed = 0

    def ask(self, question: Question, cluster: Cluster) -> None:
        """Ask; returns at once. cluster: with the prices of this moment."""
        if isinstance(question, ScaleOutTablesRequested):
            for model, lengths in question.lengths:
                one = ScaleOutTablesRequested(((model, lengths),))
                self._waiting.put(f"tables of {model}", one, cluster)
            return
        replaced = self._waiting.put("refinement", question, cluster)
        if isinstance(replaced, RefinementRequested):
            self._refinements.append(Refinement(replaced.request, timed_out=True))

    def take(self) -> Answers:
        """Answers that came since the last call, each once."""
        found = Answers(tuple(self._tables), tuple(self._refinements))
        self._tables, self._refinements = [], []
        return found

    async def run(self) -> None:
        """Ask what waits, one after the other, until cancelled; the process ends then."""
        try:
            await self._running()  # it imports for a while: have it ready for the first question
            while True:
                await self._waiting.news.wait()
                self._waiting.news.clear()
                while self._waiting.by_subject:
                    subject = next(iter(self._waiting.by_subject))
                    question, cluster = self._waiting.by_subject.pop(subject)
                    self._store(question, await self._solve(subject, question, cluster))
        finally:
            await self._kill()

    def _store(self, question: Question, found: Answer | None) -> None:
        if isinstance(found, Refinement):
            self._refinements.append(found)
        elif found is not None:
            self._tables += found
        elif isinstance(question, RefinementRequested):
            self._refinements.append(Refinement(question.request, timed_out=True))

    async def _solve(self, name: str, question: Question, cluster: Cluster) -> Answer | None:
        """The answer, None if there is none: too late, killed, or it could not be solved."""
        self._number += 1
        limit_s = self._limit_s[type(question)]
        try:
            async with asyncio.timeout(limit_s):
                return await self._exchange(name, ask(self._number, question, cluster))
        except TimeoutError:
            log.warning("%s: no answer within %g s; the solver is killed", name, limit_s)
        except (OSError, EOFError) as error:
            log.warning("%s: the solver is gone: %s", name, error or type(error).__name__)
        except (ValueError, KeyError, TypeError) as error:
            # Not JSON, a line too long, a field that is missing: whatever it is, it is no solver.
            log.warning("%s: the solver answered %r", name, error)
        self.killed += 1
        await self._kill()
        return None

    async def _exchange(self, name: str, line: bytes) -> Answer | None:
        process = await self._running()
        assert process.stdin is not None and process.stdout is not None  # noqa: S101  pipes
        process.stdin.write(line)
        await process.stdin.drain()
        while True:
            said = await process.stdout.readline()
            if not said:
                raise EOFError(f"exit code {await process.wait()}")
            number, found = answered(said)
            if number != self._number:
                continue
            if isinstance(found, str):
                log.warning("%s: not solved: %s", name, found)
                return None
            return found

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            fd = supervision_fd()
            self._process = await asyncio.create_subprocess_exec(
                *self._argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=_MOST_LINE_BYTES,
                pass_fds=() if fd is None else (fd,),
                env=dict(os.environ),
            )
        return self._process

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
