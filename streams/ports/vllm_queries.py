"""PromQL over the metrics of engines, for one name of a model.

vLLM exports `vllm:NAME`. Ray writes `ray_vllm_NAME`, and an OpenTelemetry collector `vllm_NAME`. A
counter ends in `_total` unless a collector leaves suffixes out; Ray exports both. `_created` series
and most recording rules have other names, so no query selects them. `engine_metrics` has the names
of other engines.

Most queries return one value per series. `metric_servers` merges copies and adds up servers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from autoscaler.domain.cluster import Service
from streams.ports.engine_metrics import ENGINES, VLLM, EngineMetrics
from streams.ports.latency_histograms import TOKEN, TPOT, TTFT, WHOLE
from streams.ports.metric_servers import (
    ARRIVED,
    COUNTED,
    FINISHED,
    GROWTH,
    HELD,
    LATELY,
    MARK,
    RESTARTS,
    RUNNING,
)

ANY_SOURCE = ',__source__=""'
"""Matcher in each selector. `of_source` replaces it by the labels of a Prometheus server."""

COPY_LABELS = (
    "job", "service", "endpoint", "container", "prometheus", "prometheus_replica", "replica",
    "__replica__",
)  # fmt: skip
_COPIES = ", ".join(COPY_LABELS)
_SHORT_S, _LONG_S = 60, 300
LATENCY_S = 60
"""Seconds over which latencies are counted."""

Matchers = tuple[tuple[str, tuple[str, ...]], ...]
"""Allowed values of each label."""


@dataclass(frozen=True, slots=True)
class MetricSource:
    """The series of one model: its engine's metrics, and labels that they must have."""

    engine: EngineMetrics = VLLM
    labels: Matchers = ()


VLLM_SOURCE = MetricSource()


def source_of(demand: str, labels: Matchers) -> MetricSource:
    """The source for a model's `demand` and labels; vLLM's metrics if `demand` is no engine."""
    return MetricSource(ENGINES.get(demand, VLLM), labels)


def metric_sources(services: Iterable[Service]) -> dict[str, MetricSource]:
    """The metrics of each model."""
    return {s.model: source_of(s.demand_query, s.metric_labels) for s in services}


def text_literal(text: str) -> str:
    """`text` as a PromQL string, with quotes and backslashes escaped."""
    return json.dumps(text, ensure_ascii=False)


def matchers(labels: Matchers) -> str:
    """`labels` as matchers of a selector, each after a comma."""
    return "".join(f",{name}{_among(values)}" for name, values in labels)


def of_source(query: str, labels: Matchers) -> str:
    """`query` for a Prometheus whose series must have `labels`."""
    return query.replace(ANY_SOURCE, matchers(labels))


def selector(metric: str, names: Iterable[str] = (), source: MetricSource = VLLM_SOURCE) -> str:
    """Series of `metric` under all its prefixes. names: names of the model; empty = any."""
    names = tuple(names)
    of_model = _among(names) if names else '!=""'
    return (
        f'{{__name__=~"{source.engine.prefix}{metric}",{source.engine.model}{of_model}'
        f"{matchers(source.labels)}{ANY_SOURCE}}}"
    )


def _among(values: tuple[str, ...]) -> str:
    if len(values) == 1:
        return f"={text_literal(values[0])}"
    return f"=~{text_literal('|'.join(map(re.escape, values)))}"


def arrivals_query(name: str, source: MetricSource = VLLM_SOURCE) -> str:
    """PromQL for the requests that arrive at the servers of `name`, saturated or not.

    Each part of the answer has its own value of `MARK`: completions/s and growth of the requests in
    each server, restarts, and whether the series exist. `arrivals` adds them up. A server with two
    samples in a minute is measured over that minute; a server with fewer samples is measured over
    five minutes. The result is empty if there is no such series.
    """
    engine = source.engine
    counters = [selector(metric, (name,), source) for metric in engine.finished]
    running = selector(engine.running, (name,), source)
    parts = [
        _marked(FINISHED, _by_server(" or ".join(map(_rate, counters)), engine)),
        _marked(RUNNING, f"count({running})"),
        _marked(COUNTED, f"count({' or '.join(counters)})"),
    ]
    if engine.at_arrival:
        parts.append(_marked(ARRIVED, f"count({' or '.join(counters)})"))
        return " or ".join(parts)
    resets = " or ".join(f"resets({counter}[{_SHORT_S}s])" for counter in counters)
    parts.append(_marked(RESTARTS, _by_server(resets, engine)))
    gauges = [metric for metric in (engine.running, engine.waiting) if metric]
    grown = _growth([selector(metric, (name,), source) for metric in gauges], running)
    parts.append(_marked(GROWTH, grown))
    return " or ".join(parts)


def held_query(name: str, waiting: bool, source: MetricSource = VLLM_SOURCE) -> str:
    """PromQL for the running or waiting requests in each server of `name`."""
    running = selector(source.engine.running, (name,), source)
    if not waiting:
        return _marked(HELD, running)
    if not source.engine.waiting:
        return _marked(HELD, f"0 * {running}")
    return _marked(HELD, selector(source.engine.waiting, (name,), source))


def servers_query(name: str, source: MetricSource = VLLM_SOURCE) -> str:
    """PromQL for the servers of `name`, now and within the last hour.

    `servers_of` counts them. An empty result means that Prometheus knows no such server.
    """
    running = selector(source.engine.running, (name,), source)
    return f"{_marked(RUNNING, running)} or {_marked(LATELY, f'count_over_time({running}[1h])')}"


def model_names_query(source: MetricSource = VLLM_SOURCE) -> str:
    """PromQL for the names of models that servers report."""
    return f"count by ({source.engine.model}) ({selector(source.engine.running, (), source)})"


def samples_query(name: str, source: MetricSource = VLLM_SOURCE) -> str:
    """PromQL for the samples in five minutes of the server `name` that is scraped most often."""
    return f"max(count_over_time({selector(source.engine.running, (name,), source)}[5m]))"


def finished_query(names: Iterable[str], width_s: float, source: MetricSource = VLLM_SOURCE) -> str:
    """PromQL for the last value within `width_s` of each server's counter of finished requests."""
    names = tuple(names)
    counters = (
        _by_server(
            f"last_over_time({selector(metric, names, source)}[{width_s:.0f}s])", source.engine
        )
        for metric in source.engine.finished
    )
    return " or ".join(counters)


def sampled_query(
    names: Iterable[str], width_s: float, every_s: float, source: MetricSource = VLLM_SOURCE
) -> str:
    """PromQL for the time of the value of `finished_query`, in s since the epoch."""
    names = tuple(names)
    times = (
        f"max without ({', '.join(source.engine.kinds)}) (max_over_time(timestamp("
        f"{selector(metric, names, source)})[{width_s:.0f}s:{every_s:.0f}s]))"
        for metric in source.engine.finished
    )
    return " or ".join(times)


def lengths_query(
    metric: str,
    names: Iterable[str],
    width_s: float,
    by: str,
    without: Iterable[str] = (),
    source: MetricSource = VLLM_SOURCE,
) -> str:
    """PromQL for the growth of a histogram's series `metric` within `width_s`, by labels `by`.

    without: addresses of servers that do not count.
    """
    chosen = selector(metric, names, source)
    left_out = text_literal("|".join(map(re.escape, sorted(without))))
    if left_out != '""':
        chosen = f"{chosen[:-1]},instance!~{left_out},exported_instance!~{left_out}}}"
    grown = f"increase({chosen}[{width_s:.0f}s])"
    return f"sum by ({by}) (avg without ({_COPIES}) ({grown}))"


def latency_query(names: Iterable[str], pooling: bool, source: MetricSource = VLLM_SOURCE) -> str:
    """PromQL for the growth within `LATENCY_S` of each latency histogram of a model by upper bound;
    "" if its engine has none. pooling: whether only the whole answer counts."""
    engine, names = source.engine, tuple(names)
    wanted = {WHOLE: engine.whole} if pooling else {
        TTFT: engine.ttft, TPOT: engine.tpot, TOKEN: engine.token
    }  # fmt: skip
    return " or ".join(
        _marked(mark, lengths_query(f"{metric}_bucket", names, LATENCY_S, "le", (), source))
        for mark, metric in wanted.items()
        if metric
    )


def _by_server(vector: str, engine: EngineMetrics) -> str:
    return f"sum without ({', '.join(engine.kinds)}) ({vector})"


def _marked(mark: str, vector: str) -> str:
    return f'label_replace({vector}, "{MARK}", "{mark}", "", "")'


def _rate(counter: str) -> str:
    return f"rate({counter}[{_SHORT_S}s]) or rate({counter}[{_LONG_S}s]) and {counter}"


def _growth(gauges: list[str], running: str) -> str:
    short, long = (
        f"({' + '.join(f'delta({gauge}[{width}s])' for gauge in gauges)}) / {width}"
        for width in (_SHORT_S, _LONG_S)
    )
    return f"({short} or {long} and {running})"
