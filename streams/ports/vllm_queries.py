"""PromQL over the metrics of vLLM servers, for one value of their label `model_name`.

Names: vLLM exports `vllm:NAME`. Ray writes `ray_vllm_NAME`, and an OpenTelemetry collector
`vllm_NAME`. A counter ends in `_total` unless a collector leaves suffixes out; Ray exports both.
`_created` series and recording rules have other names, so no query selects them.

Copies: two replicas of one Prometheus, or two jobs that scrape one server, give copies of its
series. Copies differ only in labels of `COPY_LABELS` and count once. All other labels, such as
instance, pod, namespace, cluster and engine, tell servers apart.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

FROM_VLLM = "vllm"
"""Value of the setting `demand` that selects `arrivals_query` instead of a user's query."""

RUNNING, WAITING = "num_requests_running", "num_requests_waiting"
FINISHED, FINISHED_PLAIN = "request_success_total", "request_success"

_PREFIX = "(ray_)?vllm[:_]"
COPY_LABELS = (
    "job", "service", "endpoint", "container", "prometheus", "prometheus_replica", "replica",
    "__replica__",
)  # fmt: skip
_COPIES = ", ".join(COPY_LABELS)
_REASON = "finished_reason"
_SHORT_S, _LONG_S = 60, 300


def text_literal(text: str) -> str:
    """`text` as a PromQL string, with quotes and backslashes escaped."""
    return json.dumps(text, ensure_ascii=False)


def selector(metric: str, names: Iterable[str] = ()) -> str:
    """Series of `metric` under all its prefixes. names: values of `model_name`; empty = any."""
    names = tuple(names)
    if not names:
        label = 'model_name!=""'
    elif len(names) == 1:
        label = f"model_name={text_literal(names[0])}"
    else:
        label = f"model_name=~{text_literal('|'.join(map(re.escape, names)))}"
    return f'{{__name__=~"{_PREFIX}{metric}",{label}}}'


def once(vector: str, reduce: str = "avg") -> str:
    """`vector` with all copies of a series merged into one."""
    return f"{reduce} without ({_COPIES}) ({vector})"


def arrivals_query(name: str) -> str:
    """PromQL for the requests/s that arrive at the vLLM servers `name`, saturated or not.

    arrivals = completions + growth of the requests in the server, so a growing queue counts
    although no vLLM counter shows it. A shrinking queue is subtracted, but the result is at least
    zero. The lost requests of a restarted server are no decrease of demand. A server with two
    samples in a minute is measured over that minute; a server with fewer samples is measured over
    five minutes. The result is empty if there is no such series, or only one sample of each.
    """
    finished, plain, running, waiting = (
        selector(metric, (name,)) for metric in (FINISHED, FINISHED_PLAIN, RUNNING, WAITING)
    )
    completions = once(f"{_rate(finished)} or {_rate(plain)}")
    none_yet = f"0 * count({running}) unless count({finished} or {plain})"
    restarts = (
        f"sum without ({_COPIES}, {_REASON}) "
        f"(resets({finished}[{_SHORT_S}s]) or resets({plain}[{_SHORT_S}s]))"
    )
    growth = f"{once(_growth(running, waiting))} unless ({restarts} > 0)"
    return (
        f"clamp_min((sum({completions}) or {none_yet}) + (sum({growth}) or 0 * sum({restarts})), 0)"
    )


def held_query(metric: str, name: str) -> str:
    """PromQL for the requests in the vLLM servers `name`. metric: RUNNING or WAITING."""
    return f"sum({once(selector(metric, (name,)))})"


def servers_query(name: str) -> str:
    """PromQL for the number of vLLM servers `name` by address.

    Each data-parallel engine of a server counts. A server that went away within the last hour
    counts 0, so an empty result means that Prometheus knows no such server.
    """
    running = selector(RUNNING, (name,))
    now, lately = (
        f'label_replace({once(vector)}, "instance", "$1", "exported_instance", "(.+)")'
        for vector in (running, f"count_over_time({running}[1h])")
    )
    return f"count by (instance) ({now}) or count by (instance) ({lately}) * 0"


def model_names_query() -> str:
    """PromQL for the values of `model_name` that vLLM servers report."""
    return f"count by (model_name) ({selector(RUNNING)})"


def samples_query(name: str) -> str:
    """PromQL for the samples in five minutes of the server `name` that is scraped most often."""
    return f"max(count_over_time({selector(RUNNING, (name,))}[5m]))"


def finished_query(names: Iterable[str], width_s: float) -> str:
    """PromQL for the last value within `width_s` of each server's counter of finished requests."""
    names = tuple(names)
    finished, plain = (
        f"sum without ({_REASON}) (last_over_time({selector(metric, names)}[{width_s:.0f}s]))"
        for metric in (FINISHED, FINISHED_PLAIN)
    )
    return f"{finished} or {plain}"


def lengths_query(metric: str, names: Iterable[str], width_s: float, by: str) -> str:
    """PromQL for the growth of a histogram's series `metric` within `width_s`, by labels `by`."""
    return f"sum by ({by}) ({once(f'increase({selector(metric, names)}[{width_s:.0f}s])')})"


def _rate(counter: str) -> str:
    return f"rate({counter}[{_SHORT_S}s]) or rate({counter}[{_LONG_S}s]) and {counter}"


def _growth(running: str, waiting: str) -> str:
    short, long = (
        f"(delta({running}[{width}s]) + delta({waiting}[{width}s])) / {width}"
        for width in (_SHORT_S, _LONG_S)
    )
    return f"{short} or {long} and {running}"
