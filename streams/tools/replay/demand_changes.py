"""Changes of a trace's demand: more or fewer requests of a model for some time.

Pure: the same jobs, changes and seed give the same jobs.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from streams.files.user_errors import UserError
from streams.tools.replay.request_schedule import Job

MOST_FACTOR = 100.0
_SPREAD_MS = 5000.0
_FORM = "FROM_MS:UNTIL_MS:FACTOR:MODEL,..."


@dataclass(frozen=True, slots=True)
class DemandChange:
    """The demand is multiplied by `factor` from from_ms to until_ms of the trace.

    model: "" = all models.
    """

    from_ms: float
    until_ms: float
    factor: float
    model: str = ""


def with_changes(jobs: Sequence[Job], changes: Sequence[DemandChange], seed: int) -> list[Job]:
    """`jobs` with the demand of each change, in order of time.

    A request is dropped, or copies of it are sent within 5 s after it, so that the rate keeps its
    shape. Copies belong to no session. Factors of overlapping changes are multiplied.
    """
    if not changes:
        return list(jobs)
    draw = random.Random(f"demand {seed}")  # noqa: S311 - a reproducible draw, no secret
    found: list[Job] = []
    for job in jobs:
        factor = 1.0
        for one in changes:
            if one.from_ms <= job.at_ms < one.until_ms and one.model in ("", job.model):
                factor *= one.factor
        count = int(factor) + (draw.random() < factor % 1.0)
        if count:
            found.append(job)
        for _ in range(count - 1):
            later_ms = job.at_ms + draw.uniform(0.0, _SPREAD_MS)
            found.append(replace(job, at_ms=later_ms, session=None, delay_ms=None))
    found.sort(key=lambda job: job.at_ms)
    return found


def format_changes(changes: Iterable[DemandChange]) -> str:
    """`changes` as the value of the replayer's option --demand."""
    return ",".join(f"{c.from_ms:g}:{c.until_ms:g}:{c.factor:g}:{c.model}" for c in changes)


def parse_changes(text: str) -> list[DemandChange]:
    """The value of --demand. UserError: it has another form."""
    found = []
    for part in filter(None, text.split(",")):
        try:
            from_ms, until_ms, factor, model = part.split(":")
            change = DemandChange(float(from_ms), float(until_ms), float(factor), model)
        except ValueError:
            raise UserError(f"--demand: {part!r} is not allowed; allowed: {_FORM}") from None
        if not (0.0 <= change.from_ms < change.until_ms and 0.0 <= change.factor <= MOST_FACTOR):
            raise UserError(
                f"--demand: {part!r} is not allowed; allowed: times in order, and a factor from 0 "
                f"to {MOST_FACTOR:g}"
            )
        found.append(change)
    return found
