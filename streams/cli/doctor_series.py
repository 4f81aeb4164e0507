"""Checks of `shoal doctor` on the series that Prometheus has of each model.

For each model with `demand` or `unmanaged` the checks send the controller's queries once. The
finding shows query and reply, and tells a missing series from zero.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import PurePosixPath

from autoscaler.domain.cluster import Mode, Service
from streams.cli.finding import Finding
from streams.files.served_names import served_names
from streams.files.shoal_yaml import Config
from streams.files.user_errors import first_line, without_login
from streams.plain_text import several
from streams.ports.engine_metrics import ENGINES
from streams.ports.metric_servers import Ask, summed
from streams.ports.promql import rate_of
from streams.ports.unmanaged_counts import servers_of
from streams.ports.vllm_queries import (
    MetricSource,
    arrivals_query,
    model_names_query,
    samples_query,
    servers_query,
    source_of,
    text_literal,
)

_SPAN_S = 300.0
_OFTEN_S = 30.0
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class _Reply:
    """The reply of one Prometheus to one query. value: None if there is no usable value. empty: no
    series matched. words: the reply as text."""

    value: float | None
    empty: bool
    words: str


def of_series(config: Config, asks: Mapping[str, Ask]) -> Iterator[Finding]:
    """Findings about each model whose demand or servers come from Prometheus.

    asks: query function of each Prometheus that answers, by name.
    """
    if not asks:
        return
    names = served_names(config.cluster.services)
    for service in config.cluster.services:
        served = names[service.model]
        if service.demand_query in ENGINES:
            yield _finding(config, service, "demand", asks, served)
            yield from _own_engines(config, service, served)
        elif service.demand_query:
            yield _custom_demand(config, service, asks)
        if service.unmanaged and not config.serving_pods:
            yield _finding(config, service, "servers", asks, served)


def _finding(
    config: Config, service: Service, what: str, asks: Mapping[str, Ask], names: Sequence[str]
) -> Finding:
    """Check whether Prometheus returns the `what` ("demand" or "servers") of a model, and list the
    reply for each served name."""
    probe = _demand if what == "demand" else _servers
    source = source_of(service.demand_query, service.metric_labels)
    title = f"{what} of {service.model}"
    if not names:
        said = "all of its names belong to other models"
        return Finding(False, title, said, f"name it: models.{service.model}.served_as")
    replies = {(s, name): probe(ask, name, source) for s, ask in asks.items() for name in names}
    values = [reply.value for reply in replies.values() if reply.value is not None]
    words = "; ".join(
        f"Prometheus {server}, model_name {text_literal(name)}: {reply.words}"
        for (server, name), reply in replies.items()
    )
    failed = any(reply.value is None and not reply.empty for reply in replies.values())
    if values:
        total = f"{_rate(sum(values))}" if what == "demand" else _count(sum(values))
        mend = "correct the Prometheus whose reply is not a number" if failed else ""
        return Finding(not failed, title, f"{total} ({words})", mend)
    if failed:
        mend = "scrape its vLLM servers at least every 120 s, and see the log of Prometheus"
        return Finding(False, title, f"unknown ({words})", mend)
    return _missing(config, service, title, words, asks, names)


def _missing(
    config: Config,
    service: Service,
    title: str,
    words: str,
    asks: Mapping[str, Ask],
    names: Sequence[str],
) -> Finding:
    """Finding about a model without a series in Prometheus, with the names that Prometheus has."""
    source = source_of(service.demand_query, service.metric_labels)
    there = {name for ask in asks.values() for name in _present(ask, source)}
    present = sorted(there - set(names))
    near = _near({*names, service.model, service.hugging_face_name} - {""}, present)
    key = f"models.{service.model}.served_as"
    if near:
        hint = f"set {key}: {near[0]} in {config.path} if this is the model"
    elif present:
        hint = f"set {key} in {config.path} to the name that vLLM serves"
    else:
        hint = "no vLLM server is scraped: add its /metrics to the scrape configuration"
    shown = near or present[:_SHOWN]
    more = f"; there are: {', '.join(map(text_literal, shown))}" if shown else ""
    if len(present) > len(shown):
        more += f" and {len(present) - len(shown)} more"
    return Finding(False, title, f"unknown, not 0 ({words}){more}", hint)


def _demand(ask: Ask, name: str, source: MetricSource) -> _Reply:
    try:
        answer = summed(ask(arrivals_query(name, source)))
        rate = rate_of(answer)
        if rate is None and answer:
            return _Reply(None, False, "a value that is not a rate")
        samples = rate_of(ask(samples_query(name, source)))
    except Exception as error:
        return _error(error)
    if samples is None or samples <= 0.0:
        return _Reply(rate, rate is None, "no such series" if rate is None else _rate(rate))
    every_s = _SPAN_S / samples
    if rate is None:
        return _Reply(None, False, "series with fewer than two samples in five minutes")
    often = f", about {every_s:.0f} s between scrapes, so the demand is a mean over five minutes"
    return _Reply(rate, False, _rate(rate) + (often if every_s > _OFTEN_S else ""))


def _servers(ask: Ask, name: str, source: MetricSource) -> _Reply:
    try:
        found = servers_of(ask(servers_query(name, source)))
    except Exception as error:
        return _error(error)
    if not found:
        return _Reply(None, True, "no such series")
    count = sum(number for _, number in found)
    return _Reply(float(count), False, _count(count))


def _custom_demand(config: Config, service: Service, asks: Mapping[str, Ask]) -> Finding:
    """Finding about the demand of a model by the user's own query."""
    title, query = f"demand of {service.model}", service.demand_query
    replies = {}
    for server, ask in asks.items():
        try:
            answer = ask(query)
            rate = rate_of(answer)
            words = "empty" if not answer else "a value that is not a rate"
            replies[server] = _Reply(rate, not answer, words if rate is None else _rate(rate))
        except Exception as error:
            replies[server] = _error(error)
    words = "; ".join(f"Prometheus {server}: {reply.words}" for server, reply in replies.items())
    values = [reply.value for reply in replies.values() if reply.value is not None]
    failed = any(reply.value is None and not reply.empty for reply in replies.values())
    said = f"{_rate(sum(values)) if values else 'unknown, not 0'} ({words}) for {query}"
    key = f"models.{service.model}.demand in {config.path}"
    mend = "" if values and not failed else f"correct {key}: it must return requests/s"
    return Finding(not mend, title, said, mend)


def _own_engines(config: Config, service: Service, names: Sequence[str]) -> Iterator[Finding]:
    """Finding that engines of Shoal serve a model under its own name, so their requests must count
    too.
    """
    if service.mode is Mode.ACT and service.model not in names:
        said = f"Shoal's engines report as {service.model}, which served_as leaves out"
        mend = f"add {service.model} to models.{service.model}.served_as in {config.path}"
        yield Finding(False, f"demand of {service.model}", said, mend)


def _present(ask: Ask, source: MetricSource) -> list[str]:
    """Names of models in a Prometheus; empty if it does not answer."""
    try:
        label = source.engine.model
        return [str(sample["metric"][label]) for sample in ask(model_names_query(source))]
    except Exception:
        return []


def _near(names: Collection[str], present: Sequence[str]) -> list[str]:
    """Items of `present` that probably mean the same model.

    Names with the same last part of a path come first, then similar names.
    """
    ends = {PurePosixPath(name).name.lower() for name in names}
    same = [name for name in present if PurePosixPath(name).name.lower() in ends]
    similar = [
        near for name in sorted(names) for near in get_close_matches(name, present, n=3, cutoff=0.6)
    ]
    return list(dict.fromkeys((*same, *similar)))[:_SHOWN]


def _rate(req_per_s: float) -> str:
    return f"{req_per_s:.3g} req/s"


def _count(count: float) -> str:
    return several(int(count), "vLLM server")


def _error(error: Exception) -> _Reply:
    return _Reply(None, False, without_login(first_line(error))[:200])
