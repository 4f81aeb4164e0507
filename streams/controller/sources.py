"""Where demand comes from: our gateways' telemetry, and Prometheus for models that name a query.

Owns which source counts for which model. Knows nothing of how either is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from autoscaler.demand.windows import TelemetryWindows
from streams.clock import Clock
from streams.files.config import Config
from streams.files.errors import UserError
from streams.ports.demand import DemandSource, Sink
from streams.ports.demand_topic import MERGED
from streams.ports.promql import FROM_VLLM, PromqlDemand, prometheus, vllm_query
from topics.reported import Reported


def demand_sources(
    config: Config,
    queries: Mapping[str, str],
    clock: Clock,
    windows: TelemetryWindows,
    telemetry: DemandSource,
    on_news: Callable[[], None],
    merged: bool = False,
) -> list[tuple[DemandSource, Sink]]:
    """Each source with its sink. merged: `telemetry` is what window workers merged of it."""
    count = merged_sink if merged else gateways_sink
    found: list[tuple[DemandSource, Sink]] = [(telemetry, count(windows, queries, on_news))]
    if queries:
        asks = {name: prometheus(server) for name, server in config.prometheus.items()}
        found.append((PromqlDemand(asks, queries, clock), prometheus_sink(windows)))
    return found


def asked_of_prometheus(config: Config) -> dict[str, str]:
    """Model -> PromQL. UserError: a query, and nobody to ask."""
    queries = {
        s.model: vllm_query(s.model) if s.demand_query == FROM_VLLM else s.demand_query
        for s in config.cluster.services
        if s.demand_query
    }
    blind = next((s.model for s in config.cluster.services if s.unmanaged), None)
    if blind is not None and not config.prometheus:
        raise UserError(f"{config.path}: models.{blind}.unmanaged: no address under prometheus")
    if queries and not config.prometheus:
        model = next(iter(queries))
        raise UserError(f"{config.path}: models.{model}.demand: no address under prometheus")
    return queries


def gateways_sink(
    windows: TelemetryWindows, queries: Mapping[str, str], on_news: Callable[[], None]
) -> Sink:
    """Counts what gateways report. Where Prometheus is asked, only that they live is noted: the
    same request must not be counted twice, nor our gateway's zero hide that Prometheus is away.

    on_news: called where something was counted."""

    def sink(said: Sequence[tuple[Reported, int]]) -> None:
        if queries:
            for record, event_ms in said:
                if record.model in queries:
                    windows.hear(record, event_ms)
            said = [one for one in said if one[0].model not in queries]
        if windows.add_all(said):
            on_news()

    return sink


def merged_sink(
    windows: TelemetryWindows, queries: Mapping[str, str], on_news: Callable[[], None]
) -> Sink:
    """As `gateways_sink`, of what window workers merged: counts come without a gateway, and the
    words of gateways without counts."""

    def sink(said: Sequence[tuple[Reported, int]]) -> None:
        counted = []
        for record, event_ms in said:
            if not record.gateway.startswith(MERGED):
                windows.hear(record, event_ms)
            elif record.model not in queries:
                counted.append((record, event_ms))
        if windows.add_all(counted, from_gateway=False):
            on_news()

    return sink


def prometheus_sink(windows: TelemetryWindows) -> Sink:
    """Counts what Prometheus says, which is no gateway: it confirms no routes."""

    def sink(said: Sequence[tuple[Reported, int]]) -> None:
        windows.add_all(said, from_gateway=False)

    return sink
