"""Choose the demand source of each model: Prometheus if the model has a query, else gateway
telemetry."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import compress
from typing import TYPE_CHECKING

from autoscaler.estimate.windows import TelemetryWindows
from streams.clock import Clock, Times
from streams.files.served_names import served_names
from streams.files.shoal_yaml import Config
from streams.files.user_errors import UserError
from streams.loop.declared_names import DeclaredNames
from streams.ports.demand_source import DemandSource, Sink
from streams.ports.engine_metrics import ENGINES
from streams.ports.latency_histograms import LatencyMeter
from streams.ports.merged_records import MERGED
from streams.ports.metric_servers import Ask
from streams.ports.vllm_queries import arrivals_query, latency_query, source_of
from topics.telemetry_columns import TelemetryBatch
from topics.topic_table import TELEMETRY

if TYPE_CHECKING:
    from streams.ports.promql import LatencySource


def demand_sources(
    config: Config,
    queries: Mapping[str, Sequence[str]],
    clock: Clock,
    windows: TelemetryWindows,
    telemetry: DemandSource,
    on_news: Callable[[], None],
    known: DeclaredNames | None = None,
) -> list[tuple[DemandSource, Sink]]:
    """Each demand source with its sink. known: declared names; records of other models are
    dropped."""
    sink = gateways_sink(windows, queries, on_news, known)
    found: list[tuple[DemandSource, Sink]] = [(telemetry, sink)]
    if queries:
        from streams.ports.promql import PromqlDemand

        asks, latencies = prometheus_asks(config), latency_sources(config)
        source = PromqlDemand(asks, queries, clock, latencies=latencies)
        found.append((source, prometheus_sink(windows)))
    return found


def prometheus_asks(config: Config, timeout_s: float = 5.0) -> dict[str, Ask]:
    """The query function of each declared Prometheus. timeout_s: real seconds of a query."""
    if not config.prometheus:
        return {}
    from streams.ports.promql import prometheus  # The client's import would delay every start.

    return {name: prometheus(server, timeout_s) for name, server in config.prometheus.items()}


def prometheus_queries(config: Config) -> dict[str, tuple[str, ...]]:
    """PromQL queries by model: the user's query, or one query for each name under which engines
    serve the model. UserError: a model has a query, but no Prometheus address is declared."""
    names = served_names(config.cluster.services)
    queries = {
        s.model: tuple(
            arrivals_query(name, source_of(s.demand_query, s.metric_labels))
            for name in names[s.model]
        )
        if s.demand_query in ENGINES
        else (s.demand_query,)
        for s in config.cluster.services
        if s.demand_query
    }
    blind = next((s.model for s in config.cluster.services if s.unmanaged), None)
    if blind is not None and not config.prometheus and not config.serving_pods:
        said = "no address under prometheus, and no serving_pods"
        raise UserError(f"{config.path}: models.{blind}.unmanaged: {said}")
    if queries and not config.prometheus:
        model = next(iter(queries))
        raise UserError(f"{config.path}: models.{model}.demand: no address under prometheus")
    return queries


def latency_sources(config: Config) -> dict[str, LatencySource]:
    """The source of latencies of each model whose demand comes from its engines' metrics."""
    from streams.ports.promql import LatencySource

    names = served_names(config.cluster.services)
    found = {}
    for s in config.cluster.services:
        if s.demand_query not in ENGINES or not names[s.model]:
            continue
        pooling = s.architecture.pooling
        query = latency_query(names[s.model], pooling, source_of(s.demand_query, s.metric_labels))
        if query:
            meter = LatencyMeter(s.slo.ttft_ms, s.slo.tpot_ms, pooling)
            found[s.model] = LatencySource(query, meter)
    return found


def gateways_sink(
    windows: TelemetryWindows,
    queries: Collection[str],
    on_news: Callable[[], None],
    known: DeclaredNames | None = None,
) -> Sink:
    """Sink of merged telemetry, see `MergedRecords.take`.

    For a model with a Prometheus query, the sink records only that the gateways are alive.
    Otherwise a request would count twice, and a zero from the gateways would hide an unavailable
    Prometheus. on_news: called after a record is counted. known: declared names; records of other
    models are dropped.
    """

    def sink(records: TelemetryBatch, ends_ms: Times) -> None:
        records, ends_ms = _declared(records, ends_ms, known)
        merged = [name[1].startswith(MERGED) for name in records.names]
        counted = [
            m and name[0] not in queries for m, name in zip(merged, records.names, strict=True)
        ]
        windows.note_gateways(*_those(records, ends_ms, [not one for one in merged]))
        if windows.add_all(*_those(records, ends_ms, counted), from_gateway=False):
            on_news()

    return sink


def prometheus_sink(windows: TelemetryWindows) -> Sink:
    """Sink that counts answers from Prometheus. Prometheus is not a gateway, so its answers confirm
    no routes."""

    def sink(records: TelemetryBatch, ends_ms: Times) -> None:
        windows.add_all(records, ends_ms, from_gateway=False)

    return sink


def _declared(
    records: TelemetryBatch, ends_ms: Times, known: DeclaredNames | None
) -> tuple[TelemetryBatch, Times]:
    """The `records` of declared models. Records of other models are dropped and counted."""
    if known is None:
        return records, ends_ms
    models = known.models()
    if models.issuperset(name[0] for name in records.names):
        return records, ends_ms
    declared = [name[0] in models for name in records.names]
    known.dropped[TELEMETRY.name] += declared.count(False)
    return _those(records, ends_ms, declared)


def _those(
    records: TelemetryBatch, ends_ms: Times, which: Sequence[bool]
) -> tuple[TelemetryBatch, Times]:
    places = list(compress(range(len(records)), which))
    return records.select(places), ends_ms[places]
