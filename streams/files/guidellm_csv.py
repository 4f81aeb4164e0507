"""Read GuideLLM's CSV: two or three header rows, then one row per benchmark.

Rows are converted to the structure of GuideLLM's JSON (metrics with means over successful
requests), so one reader is enough for both. The header describes the first benchmark. A row with
another number of cells cannot be read.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_METRICS = {
    "time_to_first_token_ms": ("time to first token",),
    "inter_token_latency_ms": ("inter token latency",),
    "prompt_token_count": ("token metrics", "input tokens"),
    "output_token_count": ("token metrics", "output tokens"),
    "request_concurrency": ("concurrency",),
    "requests_per_second": ("requests/sec",),
}
_COUNTS = {
    "successful": "request counts successful",
    "errored": "request counts errored",
    "incomplete": "request counts incomplete",
}
_MOST_HEADER_ROWS = 4
_MISFIT = "its cells do not fit the header, which is that of the first benchmark: use the JSON"


def is_guidellm_csv(text: str) -> bool:
    """Whether `text` begins like GuideLLM's CSV."""
    first = text.split("\n", 1)[0].lower()
    return first.startswith(("run info,", '"run info"')) or "time to first token" in first


def as_benchmarks(text: str) -> Iterator[Mapping[str, Any] | str]:
    """Each benchmark in the structure of GuideLLM's JSON, or the reason why its row cannot be read.
    Raises csv.Error.
    """
    rows = [row for row in csv.reader(io.StringIO(text)) if any(row)]
    head = next((i for i, row in enumerate(rows) if any(map(_is_number, row))), len(rows))
    if head > _MOST_HEADER_ROWS:
        head = 0
    names = [
        " ".join(part.strip().lower() for part in column if part.strip())
        for column in zip(*rows[:head], strict=False)
    ]
    for row in rows[head:]:
        yield _benchmark(dict(zip(names, row, strict=True))) if len(row) == len(names) else _MISFIT


def _benchmark(cells: Mapping[str, str]) -> Mapping[str, Any]:
    metrics: dict[str, Any] = {}
    for key, words in _METRICS.items():
        name = _named(cells, words)
        if name:
            metrics[key] = {"successful": {"mean": cells[name]}}
    totals = {key: cells[name] for key, name in _COUNTS.items() if cells.get(name)}
    if totals:
        metrics["request_totals"] = totals
    strategy = next((v for k, v in cells.items() if k.endswith("strategy")), "")
    profile = _object(next((v for k, v in cells.items() if k.endswith("profile")), ""))
    return {
        "metrics": metrics,
        "config": {"strategy": {**profile, "type_": strategy}},
        "model": _object(next((v for k, v in cells.items() if k.endswith("backend")), "")).get(
            "model"
        ),
        "start_time": next((v for k, v in cells.items() if k.endswith("start time")), ""),
    }


def _named(cells: Mapping[str, str], words: tuple[str, ...]) -> str:
    """The column whose name contains all `words`; "" if there is none.

    The mean over successful requests is preferred to that over all requests.
    """
    found = [name for name in cells if all(word in name for word in words) and "mean" in name]
    good = [name for name in found if "successful" in name]
    return (good or [name for name in found if not _of_failures(name)] or [""])[0]


def _of_failures(name: str) -> bool:
    return "errored" in name or "incomplete" in name


def _object(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def cells_of(rows: Sequence[Sequence[str]]) -> Iterator[Mapping[str, str | None] | str]:
    """Rows of a CSV with one header row, as objects.

    An empty cell is None. An invalid row becomes the reason.
    """
    names = rows[0]
    for row in rows[1:]:
        if len(row) == len(names):
            yield {name: cell or None for name, cell in zip(names, row, strict=True)}
        elif row:
            yield f"{len(row)} cells, expected {len(names)}"
