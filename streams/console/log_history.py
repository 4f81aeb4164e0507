"""History and decisions from before a restart, read from the decision log.

The log holds inputs and not results, so the ticks are decided again, in a process of low priority
(`python -m streams.console.log_history`): the newest segment first, until a time limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import orjson

from autoscaler.tick.account import Account
from autoscaler.tick.status import fleet_status
from streams.console.console_feed import ConsoleFeed
from streams.console.history import FINE_MS, FLEET, Sample, fleet_sample, model_sample
from streams.decision_log.log_entries import decisions_of
from streams.decision_log.log_reader import Segment, segments
from streams.decision_log.log_replay import RepeatedTick, rerun
from streams.files.user_errors import UserError
from topics.codec import read_value, write_value
from topics.decisions import Decision
from topics.edge.supervision import end_with_supervisor
from topics.error_text import error_text

log = logging.getLogger(__name__)

SPAN_MS = 7_200_000
LIMIT_S = 90.0
_KILL_S = 30.0
Samples = dict[str, list[tuple[int, Sample]]]


async def fill(feed: ConsoleFeed, folder: Path, controller: str, until_ms: int) -> None:
    """Add the two hours of the log before `until_ms` to the history and the decisions of `feed`.
    A log that cannot be read changes nothing."""
    argv = [sys.executable, "-m", "streams.console.log_history", str(folder), controller]
    process = await asyncio.create_subprocess_exec(
        *argv, str(until_ms), stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(LIMIT_S + _KILL_S):
            answer, _ = await process.communicate()
        found = orjson.loads(answer)
    except (TimeoutError, OSError, orjson.JSONDecodeError) as error:
        log.warning(
            "console: no history from the decision log: %s", error_text(error, "not in time")
        )
        return
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    feed.history.put_older(found["history"])
    feed.book.put_older(read_value(tuple[Decision, ...], found["decisions"]))


def read_log(
    folder: Path, controller: str, until_ms: int, limit_s: float = LIMIT_S
) -> tuple[Samples, list[Decision]]:
    """Samples by model, and decisions, of the segments of `controller` in the span before
    `until_ms`; both oldest first. UserError: there is no log."""
    began_s = time.monotonic()
    mine = [one for one in segments(folder) if one.controller == controller]
    mine = [one for one in mine if until_ms - SPAN_MS <= one.began_ms < until_ms]
    parts: list[tuple[Samples, list[Decision]]] = []
    for segment in reversed(mine):
        if time.monotonic() - began_s > limit_s:
            break
        with contextlib.suppress(UserError):  # a damaged segment is left out
            parts.append(_segment(segment, until_ms))
    history: Samples = {}
    decisions: list[Decision] = []
    for samples, made in reversed(parts):
        decisions += made
        for name, own in samples.items():
            history.setdefault(name, []).extend(own)
    return history, decisions


def _segment(segment: Segment, until_ms: int) -> tuple[Samples, list[Decision]]:
    samples: Samples = {}
    decisions: list[Decision] = []
    sampled_ms = 0
    account = Account()

    def watch(tick: RepeatedTick) -> None:
        nonlocal sampled_ms
        decisions.extend(decisions_of(tick.effects))
        account.tick(tick)
        if tick.now_ms < sampled_ms + FINE_MS:
            return
        sampled_ms = tick.now_ms
        status = fleet_status(tick.after, tick.observation, tick.cluster, tick.now_ms)
        totals = account.totals()
        for model in status.models:
            sample = model_sample(model, totals)
            samples.setdefault(model.model, []).append((tick.now_ms, sample))
        nodes = sum(bool(one.instances) for one in tick.after.published.assignments.values())
        samples.setdefault(FLEET, []).append((tick.now_ms, fleet_sample(status, totals, nodes)))

    rerun([segment], 0, until_ms - 1, watch)
    return samples, decisions


def main(argv: list[str]) -> int:
    """Write {"history", "decisions"} of FOLDER, CONTROLLER and the ms of the end to stdout."""
    end_with_supervisor()
    os.nice(15)
    folder, controller, until_ms = argv
    try:
        history, decisions = read_log(Path(folder), controller, int(until_ms))
    except UserError:  # at the first start, no log exists
        history, decisions = {}, []
    found: dict[str, Any] = {"history": history, "decisions": decisions}
    sys.stdout.buffer.write(write_value(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
