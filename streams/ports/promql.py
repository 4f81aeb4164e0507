"""Demand from a user's own Prometheus: PromQL queries per model that return requests per second.

Queries run in threads, because the client is synchronous. Answers of several servers are summed,
and rates become telemetry of whole requests. A query that fails or returns NaN is missing data. So
is a model whose queries are all empty. Nothing is reported for that time, and windows show the gap.
A rate of zero is reported as zero.
"""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException
from requests import PreparedRequest, Session
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase
from requests.exceptions import RequestException
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_fixed
from urllib3.util.retry import Retry

from streams.clock import Clock
from streams.files.prometheus_section import PrometheusServer
from streams.files.user_errors import without_login
from streams.ports.demand_source import Sink
from streams.ports.latency_histograms import (
    Latencies,
    LatencyMeter,
    growth_by_mark,
    latencies_of,
)
from streams.ports.metric_servers import MARK, Ask, summed
from streams.ports.vllm_queries import LATENCY_S, of_source
from topics.error_text import error_text
from topics.records import Telemetry
from topics.telemetry_columns import batch_of

log = logging.getLogger(__name__)

MAX_REQ_PER_S = 1e6
HOLD_MS = 60_000
_LATENCIES_EVERY_MS = 10_000
"""Domain ms between two queries for latencies, which are counted over a minute."""
MOST_AT_ONCE = 32
"""Concurrent queries to all servers.

asyncio has by default a few more threads than cores. With those, a hundred models at 0.1 s each
would need more than a second.
"""

WHOLE_ANSWERS = {"dedup": "true", "partial_response": "false", "deny_partial_response": "1"}
"""Parameters of every query. With them Thanos and VictoriaMetrics refuse to answer if a store is
missing, because a partial sum is not the demand. Prometheus and Mimir ignore them."""

_TRIES, _PAUSE_S = 2, 0.2


class _TokenFile(AuthBase):
    """Reads the bearer token for each query."""

    def __init__(self, file: str) -> None:
        self._file = Path(file)

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        token = self._file.read_text().strip()
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            # Check here, because the error of the HTTP client would show the token.
            raise ValueError(f"{self._file} holds no token")
        request.headers["Authorization"] = f"Bearer {token}"
        return request


def client_of(server: PrometheusServer, tries: int, timeout_s: float) -> PrometheusConnect:
    """Client of `server` with `tries` tries per query; each try ends after `timeout_s` real
    seconds."""
    session = Session()
    session.verify = server.ca_file or True
    auth = _TokenFile(server.token_file) if server.token_file else None
    retry = Retry(total=tries - 1)
    client = PrometheusConnect(
        url=server.url,
        headers=dict(server.headers),
        retry=retry,
        auth=auth,
        session=session,
        timeout=timeout_s,
    )
    # The default adapter keeps ten connections and logs a warning for each further connection.
    session.mount(server.url, HTTPAdapter(max_retries=retry, pool_maxsize=MOST_AT_ONCE))
    return client


def prometheus(server: PrometheusServer, timeout_s: float = 5.0) -> Ask:
    """Query function for `server`; each query has one try of `timeout_s` real seconds."""
    client = client_of(server, 1, timeout_s)

    def ask(query: str) -> list[dict[str, Any]]:
        try:
            asked = of_source(query, server.labels)
            found: Any = client.custom_query(asked, params=WHOLE_ANSWERS)
        except (KeyError, TypeError):  # JSON, but not an answer of Prometheus
            found = None
        if not is_vector(found):
            raise ValueError(
                f"the answer of {without_login(server.url)} is no result of Prometheus"
            )
        return found

    return ask


def is_vector(found: Any) -> TypeGuard[list[dict[str, Any]]]:
    """Whether `found` is a list of samples with labels, and with values as text. A text may still
    be no number, and a value may be missing."""
    return isinstance(found, list) and all(map(_is_sample, found))


def _is_sample(found: Any) -> bool:
    labels = found.get("metric") if isinstance(found, dict) else None
    if not isinstance(labels, dict) or not all(isinstance(text, str) for text in labels.values()):
        return False
    value = found.get("value", [0, ""])
    return isinstance(value, list) and len(value) == 2 and isinstance(value[1], str)


class _LastRate:
    """Last rate that a server returned for a model, and its time in domain ms."""

    def __init__(self, rate: float, at_ms: int) -> None:
        self.rate = rate
        self.at_ms = at_ms


@dataclass(frozen=True, slots=True)
class LatencySource:
    """The query for the latencies of one model, and the meter that counts its requests."""

    query: str
    meter: LatencyMeter


class _LastLatencies:
    """The last known latencies of a model, None = unknown, and their time in domain ms."""

    def __init__(self, seen: Latencies | None, at_ms: int) -> None:
        self.seen = seen
        self.at_ms = at_ms


class PromqlDemand:
    """Demand of models from PromQL queries. asks: query function of each Prometheus, by name.
    queries: PromQL by model, sent to every Prometheus. The answers are summed; an empty answer adds
    nothing. A server that never reported a model is not expected to answer for it. A server that
    reported a model and then does not answer counts with its last rate for `HOLD_MS`; after that
    nothing is reported for the model, because a partial sum is not the demand.

    latencies: by model, the source of its latencies, asked every `_LATENCIES_EVERY_MS`. They are
    unknown without an answer of every Prometheus that has the model's histograms. Their requests
    are reported with the demand, so that they never stand for demand.

    every_s: domain seconds between queries. With one query per second, a live Prometheus never
    looks like stopped telemetry.

    Prometheus reports rates, not single requests. The rate times the span gives whole requests; the
    fraction is added to the next span, so no request is lost.
    """

    def __init__(
        self,
        asks: Mapping[str, Ask],
        queries: Mapping[str, Sequence[str]],
        clock: Clock,
        every_s: float = 1.0,
        latencies: Mapping[str, LatencySource] | None = None,
    ) -> None:
        self._asks = dict(asks)
        self._known: dict[tuple[str, str], _LastRate] = {}
        self._silent: set[str] = set()
        self._queries = dict(queries)
        self._latency_sources = dict(latencies or {})
        self._latencies: dict[str, _LastLatencies] = {}
        self._clock = clock
        self._every_ms = int(every_s * 1000)
        self._carried = dict.fromkeys(queries, 0.0)
        self._boot = uuid.uuid4().hex
        self._sequence = 0
        self._threads = ThreadPoolExecutor(MOST_AT_ONCE, "promql")  # This starts threads on demand.

    async def replay(self, sink: Sink) -> None:
        """Does nothing: there is no data before the first answer."""

    async def follow(self, sink: Sink) -> None:
        """Query on a fixed time grid until cancelled. Slow answers do not shift the grid. A query
        that is late by a whole span is skipped, and that span is a gap.
        """
        due_ms = self._clock.now_ms() + self._every_ms
        try:
            while True:
                await asyncio.sleep(self._clock.real_s_until(due_ms))
                await self.ask_all(sink)
                late = max(0, self._clock.now_ms() - due_ms) // self._every_ms
                due_ms += (1 + late) * self._every_ms
        finally:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def live(self) -> None:
        """Returns at once, because there is no backlog."""

    async def ask_all(self, sink: Sink) -> None:
        """Query every server for every model once, concurrently, and report the answers."""
        event_ms = self._clock.now_ms()
        due = [
            (model, source)
            for model, source in self._latency_sources.items()
            if model not in self._latencies
            or event_ms - self._latencies[model].at_ms >= _LATENCIES_EVERY_MS
        ]
        rates, _ = await asyncio.gather(
            asyncio.gather(*(self._rate(m, q, event_ms) for m, q in self._queries.items())),
            asyncio.gather(*(self._read_latencies(m, source, event_ms) for m, source in due)),
        )
        answered = zip(self._queries, rates, strict=True)
        records = batch_of([self._record(m, r) for m, r in answered if r is not None])
        sink(records, np.full(len(records), event_ms))

    async def _rate(self, model: str, queries: Sequence[str], now_ms: int) -> float | None:
        answers = await asyncio.gather(
            *(self._answer(ask, model, queries) for ask in self._asks.values())
        )
        total, heard = 0.0, False
        for server, rate in zip(self._asks, answers, strict=True):
            known = self._known.get((server, model))
            if rate is not None:
                self._known[server, model] = _LastRate(rate, now_ms)
                total, heard = total + rate, True
            elif known is not None and now_ms - known.at_ms <= HOLD_MS:
                total += known.rate
            elif known is not None:
                self._note_silence(model, f"no data from {server}; unknown without it")
                return None
        if not heard:
            self._note_silence(model, "no data; shoal doctor shows the queries and the answers")
            return None
        if model in self._silent:
            self._silent.discard(model)
            log.info("demand for %s: known again", model)
        return total

    async def _read_latencies(self, model: str, source: LatencySource, now_ms: int) -> None:
        """Read the latencies of `model` from every Prometheus."""
        answers = await asyncio.gather(
            *(self._vector(ask, model, source.query) for ask in self._asks.values())
        )
        seen = None
        if None not in answers:
            samples = [sample for answer in answers for sample in answer or ()]
            growth = growth_by_mark(samples, MARK)
            seen = latencies_of(growth, LATENCY_S, source.meter.pooling)
        if seen is not None and model not in self._latencies:
            log.info("latencies of %s: %s", model, source.meter.resolution(seen))
        self._latencies[model] = _LastLatencies(seen, now_ms)

    def _note_silence(self, model: str, why: str) -> None:
        """Log once that the demand is unknown, not every second."""
        if model not in self._silent:
            self._silent.add(model)
            log.warning("demand for %s: %s", model, why)

    async def _answer(self, ask: Ask, model: str, queries: Sequence[str]) -> float | None:
        """Sum of the rates that one Prometheus returns, None for missing data."""
        answers = await asyncio.gather(*(self._vector(ask, model, query) for query in queries))
        rates = []
        for answer in answers:
            answer = None if answer is None else summed(answer)
            rate = None if answer is None else rate_of(answer)
            if rate is None and answer != []:
                return None
            if rate is not None:
                rates.append(rate)
        return sum(rates) if rates else None

    async def _vector(self, ask: Ask, model: str, query: str) -> list[dict[str, Any]] | None:
        """Result of a query, None if Prometheus did not answer."""
        trying = AsyncRetrying(
            retry=retry_if_exception_type(RequestException),
            stop=stop_after_attempt(_TRIES),
            wait=wait_fixed(_PAUSE_S),
            reraise=True,
        )
        try:
            answer: list[dict[str, Any]] = await trying(self._in_thread, ask, query)
        except (PrometheusApiClientException, OSError, ValueError, KeyError) as error:
            if model not in self._silent:
                log.warning(
                    "demand for %s: Prometheus did not answer: %s", model, error_text(error)
                )
            return None
        return answer

    async def _in_thread(self, ask: Ask, query: str) -> list[dict[str, Any]]:
        return await asyncio.get_running_loop().run_in_executor(self._threads, ask, query)

    def _record(self, model: str, rate: float) -> Telemetry:
        exact = rate * self._every_ms / 1000 + self._carried[model]
        arrivals = math.floor(exact)
        self._carried[model] = exact - arrivals
        self._sequence += 1
        source, known = self._latency_sources.get(model), self._latencies.get(model)
        counts: dict[str, Any] = {}
        if source is not None and known is not None and known.seen is not None:
            counts = source.meter.counts(known.seen, self._every_ms / 1000)
        return Telemetry(
            model=model,
            gateway="prometheus",
            boot=self._boot,
            sequence=self._sequence,
            end_ms=self._clock.now_ms(),
            span_ms=self._every_ms,
            age_ms=0,
            arrivals=arrivals,
            completions=counts.get("completions", 0),
            failures=0,
            refused=0,
            attained=counts.get("attained", 0),
            input_tokens_arrived=0,
            input_tokens=0,
            output_tokens=0,
            in_flight=0,
            route_generation=0,
            ttft_ms=counts.get("ttft_ms", {}),
            tpot_ms=counts.get("tpot_ms", {}),
        )


def rate_of(answer: list[dict[str, Any]]) -> float | None:
    """Requests/s in an instant vector: the sum of its samples, None for missing data.

    Values are text; 0/0 is "NaN". One invalid sample invalidates the sum, because a partial sum is
    not the demand.
    """
    total, seen = 0.0, False
    for sample in answer:
        try:
            value = float(sample["value"][1])
        except (KeyError, IndexError, TypeError, ValueError):
            return None
        if not math.isfinite(value) or not 0.0 <= value <= MAX_REQ_PER_S:
            return None
        total, seen = total + value, True
    return total if seen else None
