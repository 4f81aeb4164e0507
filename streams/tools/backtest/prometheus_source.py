"""Range queries of `shoal backtest --prometheus`: finished requests and histograms of lengths.

Each failure is a UserError that names the address.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from prometheus_api_client.exceptions import PrometheusApiClientException

from streams.files.prometheus_section import PrometheusServer
from streams.files.user_errors import UserError
from streams.ports.promql import WHOLE_ANSWERS, client_of
from streams.ports.vllm_queries import (
    VLLM_SOURCE,
    MetricSource,
    lengths_query,
    model_names_query,
    of_source,
)
from streams.tools.backtest.prometheus_counters import (
    AskRange,
    Floats,
    Grid,
    ServedRequests,
    read_requests,
)
from topics.error_text import error_text

_LENGTHS_S = 3600.0
_TIMEOUT_S = 60
_SYSTEM_SAID = re.compile(r"\[Errno -?\d+\] ([\w ,]+)")
_NO_RESULT = (LookupError, TypeError, AttributeError, ValueError)
_Series = dict[tuple[str, ...], Floats]


@dataclass(frozen=True, slots=True)
class LengthHistogram:
    """The histogram of one length. buckets: cumulative counts per hour, by `model_name` and upper
    edge. tokens: token sums per hour, by `model_name`. Each value covers `hour_s` seconds."""

    buckets: Mapping[tuple[str, float], Floats]
    tokens: Mapping[str, Floats]
    hour_s: float


def ask_range(server: PrometheusServer) -> AskRange:
    """A function that sends range queries to `server`."""
    client = client_of(server, 2, _TIMEOUT_S)

    def ask(query: str, from_s: float, to_s: float, step_s: float) -> list[dict[str, Any]]:
        begin, end = (datetime.fromtimestamp(at_s, UTC) for at_s in (from_s, to_s))
        found: list[dict[str, Any]] = client.custom_query_range(
            of_source(query, server.labels), begin, end, f"{step_s:.0f}s", params=WHOLE_ANSWERS
        )
        return found

    return ask


class PrometheusSource:
    """Range queries to the Prometheus at `url`. names: values of `model_name`; empty = all. source:
    the engine's metrics."""

    def __init__(
        self,
        ask: AskRange,
        url: str,
        names: Collection[str],
        source: MetricSource = VLLM_SOURCE,
    ) -> None:
        self._ask = ask
        self._url = url
        self._names = names
        self._source = source
        self._label = source.engine.model
        self._prefill: frozenset[str] = frozenset()

    def requests(self, grid: Grid) -> dict[str, ServedRequests]:
        """Finished requests by `model_name`."""
        try:
            found, self._prefill = read_requests(self._answer, grid, self._names, self._source)
            return found
        except _NO_RESULT:
            raise self._no_result() from None

    def lengths(self, metric: str, grid: Grid) -> LengthHistogram:
        """The histogram of `metric`, the engine's `prompt` or `answer`."""
        since_s = grid.steps * grid.step_s
        hours = math.ceil(since_s / _LENGTHS_S)
        try:
            cumulative = self._series(f"{metric}_bucket", f"{self._label}, le", grid, hours)
            sums = self._series(f"{metric}_sum", self._label, grid, hours)
            buckets: dict[tuple[str, float], Floats] = {}
            for (name, edge), values in cumulative.items():
                key = name, float(edge)  # Versions of vLLM write an edge as "1" or "1.0".
                buckets[key] = buckets[key] + values if key in buckets else values
        except _NO_RESULT:
            raise self._no_result() from None
        tokens = {name: values for (name,), values in sums.items()}
        return LengthHistogram(buckets, tokens, since_s / hours)

    def names_at(self, at_s: float) -> list[str]:
        """All values of `model_name` that vLLM servers report at `at_s`."""
        try:
            answer = self._answer(model_names_query(self._source), at_s, at_s, 60.0)
            return sorted({str(one["metric"].get(self._label, "")) for one in answer} - {""})
        except _NO_RESULT:
            raise self._no_result() from None

    def _series(self, metric: str, by: str, grid: Grid, hours: int) -> _Series:
        hour_s = grid.steps * grid.step_s / hours
        begin_s, end_s = grid.from_s + hour_s, grid.from_s + hours * hour_s
        query = lengths_query(metric, self._names, hour_s, by, self._prefill, self._source)
        return {
            tuple(str(one["metric"].get(label, "")) for label in by.split(", ")): _values(
                one, begin_s, hour_s, hours
            )
            for one in self._answer(query, begin_s, end_s, hour_s)
        }

    def _answer(
        self, query: str, from_s: float, to_s: float, step_s: float
    ) -> list[dict[str, Any]]:
        try:
            return self._ask(query, from_s, to_s, step_s)
        except (OSError, PrometheusApiClientException) as error:
            raise UserError(f"--prometheus {self._url}: {_first_line(error)}") from None

    def _no_result(self) -> UserError:
        return UserError(f"--prometheus {self._url}: the answer is no result of Prometheus")


def _values(one: Mapping[str, Any], from_s: float, every_s: float, steps: int) -> Floats:
    """The samples of a series on the grid. A missing or non-numeric sample counts as 0."""
    found = np.zeros(steps)
    for at_s, text in one["values"]:
        index = round((float(at_s) - from_s) / every_s)
        value = float(text)
        if 0 <= index < steps and math.isfinite(value) and value > 0.0:
            found[index] = value
    return found


def _first_line(error: Exception) -> str:
    text = error_text(error)
    if cause := _SYSTEM_SAID.search(text):  # urllib3's text about its retries contains the cause.
        return f"cannot be reached ({cause[1]})"
    return text.splitlines()[0][:200]
