"""The model and the time of each request of a trace, all drawn before the start.

Pure: the same trace, weights, limits and seed give the same schedule.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from streams.files.user_errors import UserError
from streams.tools.replay.trace_sessions import NO_SESSION
from streams.tools.replay.traces import Trace


@dataclass(frozen=True, slots=True)
class Job:
    """One request to send. at_ms: domain ms after the start. Tokens are at least 1.

    media: the media of a chat (`topics.routing.MEDIA`; () is only text); None for a completion.
    score: the score that the client states, or None. session: None for a single request. A turn of
    a session waits for the answer to the previous turn. delay_ms: from that answer until this turn.
    None: this turn is sent at at_ms, or after that answer if it comes later. blocks: hashes of the
    full blocks of the prompt, empty if the trace has none.
    """

    at_ms: float
    model: str
    input_tokens: int
    output_tokens: int
    media: tuple[str, ...] | None = None
    score: float | None = None
    session: int | None = None
    delay_ms: float | None = None
    blocks: Sequence[int] = ()


Kinds = tuple[tuple[float, tuple[str, ...]], ...]
"""Share and media of each kind of a model's requests."""


def with_media(jobs: list[Job], kinds: Mapping[str, Kinds], seed: int) -> list[Job]:
    """`jobs` with media drawn for models of several kinds.

    The draw of media is separate, so each request keeps its model.
    """
    draw = random.Random(f"media {seed}")  # noqa: S311 - a reproducible split, no secret
    drawn = []
    for job in jobs:
        of = kinds.get(job.model)
        if of:
            shares = [share for share, _ in of]
            job = replace(job, media=draw.choices([media for _, media in of], shares)[0])
        drawn.append(job)
    return drawn


def schedule(
    trace: Trace,
    weights: Mapping[str, float],
    max_len: Mapping[str, int],
    seed: int,
    for_ms: float,
    scores: Mapping[str, Sequence[float]] | None = None,
) -> list[Job]:
    """The jobs of the first `for_ms` of `trace` (inf: all of them), in order of time.

    If a trace names models, its requests go to those models; UserError for a model that `weights`
    lacks. Otherwise each request goes to a random model whose `max_len` is at least its input and
    output tokens. Turns of a session get the same model. A request that no model can hold goes to
    the model with the highest limit, which refuses it, so that the request counts as failed.
    scores: distributions of scores, for services of several models.
    """
    unknown = sorted(set(trace.models) - set(weights))
    if unknown:
        known = ", ".join(sorted(weights))
        raise UserError(f"{trace.path}: model {unknown[0]!r} is not configured; models: {known}")
    weights = {model: weight for model, weight in weights.items() if weight > 0.0}
    draw = random.Random(seed)  # noqa: S311 - a reproducible split, no secret
    scoring = random.Random(seed + 1)  # noqa: S311 - as above; models and scores do not shift
    jobs = []
    points: dict[int, float] = {}
    rows = zip(trace.arrivals_ms, trace.input_tokens, trace.output_tokens, strict=True)
    for index, (at_ms, read, written) in enumerate(rows):
        if at_ms >= for_ms:
            break
        read, written = max(1, read), max(1, written)
        session, delay_ms = _turn(trace, index)
        if trace.models:
            model = trace.models[index]
        else:
            point = (
                draw.random()
            )  # Always draw one number per request, so that limits do not change later draws.
            if session is not None:
                point = points.setdefault(session, point)
            size = read + written
            fitting = {m: w for m, w in weights.items() if size <= max_len.get(m, 1 << 62)}
            model = _chosen(fitting, point) if fitting else max(weights, key=lambda m: max_len[m])
        score = _score(scores, model, scoring)
        blocks = trace.blocks[index] if trace.blocks else ()
        jobs.append(Job(at_ms, model, read, written, None, score, session, delay_ms, blocks))
    return jobs


def _turn(trace: Trace, index: int) -> tuple[int | None, float | None]:
    """Session and delay of a request, None if it has none."""
    if not trace.sessions or trace.sessions[index] == NO_SESSION:
        return None, None
    delay_ms = trace.delays_ms[index]
    return trace.sessions[index], None if delay_ms < 0.0 else delay_ms


def _score(
    scores: Mapping[str, Sequence[float]] | None, model: str, draw: random.Random
) -> float | None:
    known = scores.get(model) if scores else None
    return draw.choice(known) if known else None


def _chosen(weights: Mapping[str, float], point: float) -> str:
    """The model at `point` (0 to 1) of the cumulative weights."""
    left = point * sum(weights.values())
    for model, weight in weights.items():
        left -= weight
        if left < 0.0:
            return model
    return next(reversed(list(weights)))
