"""A trace rebuilt from a Prometheus that scrapes vLLM: counts per minute, lengths per hour.

Prometheus has counters, not single requests. Answered requests are spread evenly inside each step.
Prompt and answer lengths are drawn from the histograms of their hour and scaled to the hour's token
sums. `notes` state how the rebuilt trace differs from the counters. The module sends only range
queries. The trace does not depend on the policy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from prometheus_api_client.exceptions import PrometheusApiClientException

from streams.files.prometheus_section import PrometheusServer
from streams.files.user_errors import UserError
from streams.ports.promql import client_of

Floats = npt.NDArray[np.float64]
AskRange = Callable[[str, float, float, float], list[dict[str, Any]]]
"""A range query: PromQL, from, to (s since the epoch), step in s -> the result matrix."""

REQUESTS = "vllm:request_success_total"
PROMPT, ANSWER = "vllm:request_prompt_tokens", "vllm:request_generation_tokens"
MODEL = "model_name"
STEP_S, LENGTHS_S = 60.0, 3600.0
_MOST_POINTS = 10_000  # Prometheus refuses over 11,000 points per series
_MOST = 5_000_000
_TIMEOUT_S = 60
_SYSTEM_SAID = re.compile(r"\[Errno -?\d+\] ([\w ,]+)")


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A rebuilt trace. path: a plain CSV trace with models. notes: one per model, on the trace's
    accuracy."""

    path: Path
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Law:
    """The distribution of lengths in one hour: upper edges of buckets, count of each bucket, sum of
    tokens."""

    edges: Floats
    counts: Floats
    tokens: float


def ask_range(server: PrometheusServer) -> AskRange:
    """A function that sends range queries to `server`."""
    client = client_of(server, 2, _TIMEOUT_S)

    def ask(query: str, from_s: float, to_s: float, step_s: float) -> list[dict[str, Any]]:
        begin, end = datetime.fromtimestamp(from_s), datetime.fromtimestamp(to_s)
        found: list[dict[str, Any]] = client.custom_query_range(query, begin, end, f"{step_s:.0f}s")
        return found

    return ask


def rebuild(
    ask: AskRange,
    url: str,
    to_s: int,
    since_s: float,
    folder: Path,
    seed: int,
    names: Mapping[str, str] | None = None,
) -> Rebuilt:
    """The last `since_s` seconds (at least 120) before `to_s` as a trace in `folder`.

    names: models of Prometheus whose names in the configuration differ -> those names. UserError:
    Prometheus does not answer, has no data, or has more than 5 million requests.
    """
    step_s = max(STEP_S, float(math.ceil(since_s / _MOST_POINTS)))
    since_s = step_s * math.floor(since_s / step_s)
    hour_s = since_s / math.ceil(since_s / LENGTHS_S)
    from_s = to_s - since_s

    def series(metric: str, every_s: float, by: str = MODEL) -> dict[tuple[str, ...], Floats]:
        query = f"sum by ({by}) (increase({metric}[{every_s:.0f}s]))"
        steps = max(1, round(since_s / every_s))
        try:
            answer = ask(query, from_s + every_s, to_s, every_s)
            return {
                tuple(
                    str(one["metric"].get(label.strip(), "")) for label in by.split(",")
                ): _values(one, from_s + every_s, every_s, steps)
                for one in answer
            }
        except (OSError, PrometheusApiClientException, ValueError) as error:
            raise UserError(f"--prometheus {url}: {_first_line(error)}") from None
        except (LookupError, TypeError, AttributeError):
            raise UserError(
                f"--prometheus {url}: what it answers is no result of Prometheus"
            ) from None

    counted = {key[0]: values for key, values in series(REQUESTS, step_s).items() if values.any()}
    if not counted:
        raise UserError(f"--prometheus {url}: no {REQUESTS} in the last {since_s:.0f} s")
    total = sum(float(values.sum()) for values in counted.values())
    if total > _MOST:
        raise UserError(
            f"--prometheus {url}: about {total:.3g} requests; allowed: {_MOST:.0e}. Take a shorter "
            "--since"
        )
    laws = {
        metric: (
            series(f"{metric}_bucket", hour_s, f"{MODEL}, le"),
            series(f"{metric}_sum", hour_s),
        )
        for metric in (PROMPT, ANSWER)
    }
    random = np.random.default_rng(seed)
    rows: list[tuple[float, str, int, int]] = []
    notes: list[str] = []
    for model in sorted(counted):
        at_s = _times(counted[model], step_s, random)
        drawn = {}
        for metric in (PROMPT, ANSWER):
            found = _lengths(_laws(*laws[metric], model), at_s, hour_s, random)
            if found is None:
                raise UserError(f"--prometheus {url}: no {metric}_bucket of {model}")
            drawn[metric] = found
        prompts, answers = drawn[PROMPT], drawn[ANSWER]
        ours = (names or {}).get(model, model)
        lengths = zip(at_s.tolist(), prompts.tolist(), answers.tolist(), strict=True)
        rows += [(at, ours, read, written) for at, read, written in lengths]
        notes.append(_note(model, counted[model], at_s, step_s, laws, prompts, answers))
    rows.sort()
    path = folder / "prometheus.csv"
    with path.open("w", encoding="utf-8") as out:
        out.write("time,model,input_tokens,output_tokens\n")
        out.writelines(f"{at:.3f},{model},{read},{written}\n" for at, model, read, written in rows)
    return Rebuilt(path, tuple(notes))


def _note(
    model: str,
    counts: Floats,
    at_s: Floats,
    step_s: float,
    laws: Mapping[str, tuple[Mapping[tuple[str, ...], Floats], Mapping[tuple[str, ...], Floats]]],
    prompts: npt.NDArray[np.int64],
    answers: npt.NDArray[np.int64],
) -> str:
    """Text that compares the rebuilt requests with the counters."""
    parts = []
    for what, metric, drawn in (("prompt", PROMPT, prompts), ("answer", ANSWER, answers)):
        told = float(laws[metric][1].get((model,), np.zeros(1)).sum())
        if told > 0.0:
            parts.append(f"{what} tokens {100.0 * (drawn.sum() / told - 1.0):+.1f}%")
    return (
        f"{model}: rebuilt {len(at_s)} requests (counters: {counts.sum():.0f}; "
        f"{', '.join(parts) or 'no token sums'}); times are known to {step_s:.0f} s, so shorter "
        "bursts are lost; lengths to a bucket; requests that failed are not counted, and queues "
        "show as later arrivals"
    )


def _times(counts: Floats, step_s: float, random: np.random.Generator) -> Floats:
    """Uniformly random times inside each step. A fractional request is carried to a later step."""
    whole = np.diff(np.floor(np.concatenate(([0.0], np.cumsum(counts))) + 1e-6)).astype(int)
    starts = step_s * np.repeat(np.arange(len(counts)), whole)
    return np.sort(starts + step_s * random.random(len(starts)))


def _laws(
    buckets: Mapping[tuple[str, ...], Floats], sums: Mapping[tuple[str, ...], Floats], model: str
) -> list[_Law]:
    """One distribution of lengths for each hour that has data."""
    mine = {float(key[1]): values for key, values in buckets.items() if key[0] == model}
    if not mine:
        return []
    edges = np.array(sorted(mine))
    table = np.array([mine[edge] for edge in edges])
    tokens = sums.get((model,), np.zeros(table.shape[1]))
    counts = np.maximum(0.0, np.diff(table, axis=0, prepend=0.0))
    return [_Law(edges, counts[:, k], float(tokens[k])) for k in range(table.shape[1])]


def _lengths(
    laws: list[_Law], at_s: Floats, every_s: float, random: np.random.Generator
) -> npt.NDArray[np.int64] | None:
    """Tokens of each arrival, drawn by its hour. An hour without data uses the last hour before it
    that has data."""
    known = [k for k, law in enumerate(laws) if law.counts.sum() > 0.0]
    if not known:
        return None
    hours = np.minimum((at_s / every_s).astype(int), len(laws) - 1)
    nearest = [max((k for k in known if k <= h), default=known[0]) for h in range(len(laws))]
    found = np.ones(len(at_s))
    for hour in np.unique(hours):
        law = laws[nearest[hour]]
        chosen = np.flatnonzero(hours == hour)
        bucket = random.choice(len(law.counts), len(chosen), p=law.counts / law.counts.sum())
        low = np.concatenate(([0.0], law.edges[:-1]))[bucket]
        high = law.edges[bucket]
        high = np.where(np.isfinite(high), high, 2.0 * np.maximum(low, 1.0))
        values = low + (high - low) * random.random(len(chosen))
        mean = law.tokens / law.counts.sum()
        found[chosen] = values * (mean / values.mean() if mean > 0.0 else 1.0)
    return np.maximum(1, np.rint(found)).astype(np.int64)


def _values(one: Mapping[str, Any], from_s: float, every_s: float, steps: int) -> Floats:
    """The samples of a series on the grid. A missing or non-numeric sample counts as 0."""
    found = np.zeros(steps)
    for at_s, text in one.get("values", ()):
        index = round((float(at_s) - from_s) / every_s)
        value = float(text)
        if 0 <= index < steps and math.isfinite(value) and value > 0.0:
            found[index] = value
    return found


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    if cause := _SYSTEM_SAID.search(text):  # urllib3's text on its retries contains the cause
        return f"cannot be reached ({cause[1]})"
    return text.splitlines()[0][:200]
