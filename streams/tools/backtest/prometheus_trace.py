"""A trace rebuilt from a Prometheus that scrapes vLLM: requests per minute, lengths per hour.

Prometheus has counters, not single requests. Finished requests are spread over each step at random.
Prompt and answer lengths are drawn from the histograms of their hour and scaled to the hour's token
sums. `notes` state how the rebuilt trace differs from the counters. The module sends only range
queries. The trace does not depend on the policy.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from streams.files.user_errors import UserError
from streams.ports.vllm_queries import VLLM_SOURCE, MetricSource, text_literal
from streams.tools.backtest.prometheus_counters import (
    AskRange,
    Floats,
    Grid,
    ServedRequests,
    trace_begin,
)
from streams.tools.backtest.prometheus_source import LengthHistogram, PrometheusSource

REQUESTS = "vllm:request_success_total"
STEP_S = 60.0
_MOST_POINTS = 10_000  # Prometheus refuses over 11,000 points per series
_MOST = 5_000_000
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A rebuilt trace. path: a plain CSV trace with models. notes: texts about the accuracy of the
    trace. begin_s: second of the range at which the trace begins.
    """

    path: Path
    notes: tuple[str, ...]
    begin_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Law:
    """The distribution of lengths in one hour: upper edges of buckets, count of each bucket, sum of
    tokens."""

    edges: Floats
    counts: Floats
    tokens: float


def rebuild(
    ask: AskRange,
    url: str,
    to_s: int,
    since_s: float,
    folder: Path,
    seed: int,
    names: Mapping[str, str] | None = None,
    declared_only: bool = False,
    metrics: MetricSource = VLLM_SOURCE,
) -> Rebuilt:
    """The last `since_s` seconds (at least 120) before `to_s`, as a trace in `folder`.

    names: `model_name` in Prometheus -> model of the configuration, if they differ. declared_only:
    read only `names`. UserError: Prometheus does not answer, has no data, or has more than 5
    million requests.
    """
    names = names or {}
    wanted = tuple(names) if declared_only else ()
    step_s = max(STEP_S, float(math.ceil(since_s / _MOST_POINTS)))
    steps = math.floor(since_s / step_s)
    grid = Grid(to_s - steps * step_s, step_s, steps)
    source = PrometheusSource(ask, url, wanted, metrics)
    histograms = {"prompt": metrics.engine.prompt, "answer": metrics.engine.answer}
    if not all(histograms.values()):
        raise UserError(
            f"--prometheus {url}: this engine exports no lengths of requests; allowed: --trace "
            "with a log of requests"
        )
    found, present = source.requests(grid), source.names_at(to_s)
    _refuse_unusable(url, found, wanted, present, grid)
    lengths = {what: source.lengths(metric, grid) for what, metric in histograms.items()}
    random = np.random.default_rng(seed)
    begin_s = trace_begin(found) * step_s
    rows: list[tuple[float, str, int, int]] = []
    notes = list(_notes_on_names(found, names, wanted, present))
    if begin_s:
        notes.append(f"the series begin {_span(begin_s)} after --since, and the trace with them")
    for name in sorted(name for name, one in found.items() if one.counts.any()):
        at_s = _times(found[name].counts, step_s, random)
        drawn = {}
        for what, histogram in lengths.items():
            tokens = _lengths(_laws(histogram, name), at_s, histogram.hour_s, random)
            if tokens is None:
                raise UserError(f"--prometheus {url}: no {histograms[what]}_bucket of {name}")
            drawn[what] = tokens
        tokens_of = (drawn[what].tolist() for what in histograms)
        rows += [
            (at, names.get(name, name), prompt, answer)
            for at, prompt, answer in zip((at_s - begin_s).tolist(), *tokens_of, strict=True)
        ]
        notes.append(_note(name, found[name], at_s, grid, lengths, drawn))
    rows.sort()
    path = folder / "prometheus.csv"
    with path.open("w", encoding="utf-8") as out:
        out.write("time,model,input_tokens,output_tokens\n")
        out.writelines(f"{at:.3f},{model},{read},{written}\n" for at, model, read, written in rows)
    return Rebuilt(path, tuple(notes), begin_s)


def together(traces: Sequence[Rebuilt], folder: Path) -> Rebuilt:
    """One trace of `traces`, which were rebuilt from the same range."""
    if len(traces) == 1:
        return traces[0]
    begin_s = min(one.begin_s for one in traces)
    rows: list[tuple[float, str]] = []
    header = ""
    for one in traces:
        header, *lines = one.path.read_text(encoding="utf-8").splitlines()
        for line in lines:
            at, _, rest = line.partition(",")
            rows.append((float(at) + one.begin_s - begin_s, rest))
    path = folder / "prometheus.csv"
    text = "".join(f"{at:.3f},{rest}\n" for at, rest in sorted(rows))
    path.write_text(f"{header}\n{text}", encoding="utf-8")
    return Rebuilt(path, tuple(note for one in traces for note in one.notes), begin_s)


def _refuse_unusable(
    url: str,
    found: Mapping[str, ServedRequests],
    wanted: Collection[str],
    present: Collection[str],
    grid: Grid,
) -> None:
    """UserError if no series matches, no request was finished, or there are too many requests."""
    span = f"in the last {grid.steps * grid.step_s:.0f} s"
    if not found:
        of = f" with model_name {_listed(wanted)}" if wanted else ""
        there = f"; there are: {_listed(present)}" if present and wanted else ""
        hint = ". Declare the right name under served_as of its model" if there else ""
        raise UserError(f"--prometheus {url}: no {REQUESTS}{of} {span}{there}{hint}")
    total = sum(float(one.counts.sum()) for one in found.values())
    if not total:
        raise UserError(
            f"--prometheus {url}: the servers of {_listed(sorted(found))} finished no request "
            f"{span}"
        )
    if total > _MOST:
        raise UserError(
            f"--prometheus {url}: about {total:.3g} requests; allowed: {_MOST:.0e}. Take a shorter "
            "--since"
        )


def _notes_on_names(
    found: Mapping[str, ServedRequests],
    names: Mapping[str, str],
    wanted: Collection[str],
    present: Collection[str],
) -> Iterator[str]:
    """Notes on models without series, on idle servers, and on names that are not read."""
    models: dict[str, list[str]] = {}
    for name in wanted:
        models.setdefault(names[name], []).append(name)
    for model, its in models.items():
        if found.keys().isdisjoint(its):
            yield f"{model}: no series with model_name {_listed(its)}"
    for name, one in sorted(found.items()):
        if not one.counts.any():
            yield f"{name}: its servers finished no request"
    others = sorted(set(present) - set(wanted)) if wanted else []
    if others:
        yield f"not read, because no model is served under these names: {_listed(others)}"


def _listed(names: Collection[str]) -> str:
    """`names` in quotes; a long list is cut."""
    shown = ", ".join(map(text_literal, list(names)[:_SHOWN]))
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


def _span(seconds: float) -> str:
    return f"{seconds / 3600.0:.1f} h" if seconds >= 3600.0 else f"{seconds / 60.0:.0f} min"


def _note(
    name: str,
    served: ServedRequests,
    at_s: Floats,
    grid: Grid,
    lengths: Mapping[str, LengthHistogram],
    drawn: Mapping[str, npt.NDArray[np.int64]],
) -> str:
    """A comparison of the rebuilt requests with the counters, as text."""
    parts = []
    for what, histogram in lengths.items():
        told = float(histogram.tokens.get(name, np.zeros(1)).sum())
        if told > 0.0:
            parts.append(f"{what} tokens {100.0 * (drawn[what].sum() / told - 1.0):+.1f}%")
    text = (
        f"{name}: rebuilt {len(at_s)} requests (counters: {served.counts.sum():.0f}; "
        f"{', '.join(parts) or 'no token sums'}); times are known to {grid.step_s:.0f} s, so "
        "shorter bursts are lost; lengths to a bucket; requests that failed are not counted, and "
        "queues show as later arrivals"
    )
    if (silent := grid.steps - served.end) > 1:
        text += (
            f". Its servers have no sample in the last {_span(silent * grid.step_s)}; the trace "
            "has no requests there"
        )
    if not served.gaps.any():
        return text
    missing, whole = (_span(steps * grid.step_s) for steps in (served.gaps.sum(), grid.steps))
    return (
        f"{text}. In {missing} of {whole} a server had no samples; the counters tell how many "
        "requests these gaps hold, and they are spread evenly"
    )


def _times(counts: Floats, step_s: float, random: np.random.Generator) -> Floats:
    """Uniformly random times inside each step. A fractional request is carried to a later step."""
    whole = np.diff(np.floor(np.concatenate(([0.0], np.cumsum(counts))) + 1e-6)).astype(int)
    starts = step_s * np.repeat(np.arange(len(counts)), whole)
    return np.sort(starts + step_s * random.random(len(starts)))


def _laws(histogram: LengthHistogram, name: str) -> list[_Law]:
    """One distribution of lengths for each hour."""
    mine = {edge: values for (its, edge), values in histogram.buckets.items() if its == name}
    if not mine:
        return []
    edges = np.array(sorted(mine))
    table = np.array([mine[edge] for edge in edges])
    tokens = histogram.tokens.get(name, np.zeros(table.shape[1]))
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
