"""The demand of a backtest: trace files turned into arrivals of the declared models.

This module assigns files to models, cuts slices, scales rates and notes unusual requests. The
demand does not depend on the policy.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

import numpy as np

from autoscaler.domain.cluster import Cluster, Mode
from autoscaler.domain.workload import Lengths
from autoscaler.serving.routing_policies import RoutingPolicy
from autoscaler.simulation.arrivals import Arrival, fitting_arrivals, measured_lengths
from autoscaler.simulation.gateway_process import GatewayLimits
from autoscaler.simulation.scenario import Scenario
from streams.files.components_section import refuse_components
from streams.files.currencies import parse_rates
from streams.files.shoal_yaml import load_config
from streams.files.user_errors import NoRequests, UserError
from streams.tools.backtest.demand_options import Demand, TraceSource
from streams.tools.backtest.supply_files import TraceTime, load_supply
from streams.tools.replay.request_schedule import Job, schedule
from streams.tools.replay.servegen import is_servegen, load_representatives
from streams.tools.replay.trace_blocks import endless_hit_rate
from streams.tools.replay.trace_sessions import NO_SESSION
from streams.tools.replay.traces import Trace, load_trace

DEFAULT_CONFIG = Path(str(resources.files("streams").joinpath("data/backtest.yaml")))
PRIOR_S = 300.0
"""Length of the trace's beginning that gives the demand of models without a declared workload, in
s.
"""
LEAD_S = 240.0
"""Seconds from the controller's start to the first possible request, in which the first fleet
starts.
"""
_SPREAD_S = 5.0
_NO_COMPONENTS = (
    "backtest: a trace does not say which components its requests need, and the other policies "
    "plan whole models only"
)
_NO_QUALITY = (
    "backtest: a trace does not say how difficult its requests are, and the other policies do not "
    "choose between models"
)
_MOST = 5_000_000
_COPY_BITS = 40  # bits of a hash below the number of the copy
_MOST_FLUID = 400_000
"""Lengths drawn from ServeGen's records for a simulation by rates, over all models. Each may stand
for several requests.
"""
_UNDECLARED = Lengths.expected(1024.0, 256.0)  # tokens, for models without a declared workload


@dataclass(frozen=True, slots=True)
class Workload:
    """A scenario, with notes on how it was made from the traces."""

    scenario: Scenario
    notes: tuple[str, ...]


def load_workload(demand: Demand, seed: int) -> Workload:
    """The scenario of `demand`. UserError, ConfigError or InvalidValue for unusable input.

    The seed determines the models of requests that name none, the scaling of rates, and the
    requests of ServeGen's windows.
    """
    random = np.random.default_rng(seed)
    notes: list[str] = []
    traces = []
    sources = demand.sources()
    weights: list[float] = []
    silent: list[NoRequests] = []
    for source in sources:
        try:
            trace, weight = _slice(demand, source, random, _MOST_FLUID // len(sources))
        except NoRequests as error:
            if not source.model:
                raise
            silent.append(error)
            continue
        weights.append(weight)
        if len(trace.arrivals_ms) > _MOST:
            raise UserError(f"{source.path}: {len(trace.arrivals_ms)} requests; allowed: {_MOST}")
        traces.append((source.model, trace))
        if weight > 1.0:
            of = f"{source.model}: " if source.model else ""
            notes.append(
                f"{of}each of {len(trace.arrivals_ms)} drawn lengths stands for {weight:.3g} "
                "requests; their number in a span is drawn by the rate"
            )
    if not traces:
        raise silent[0]
    read_as = {
        trace.path.name: f"{trace.form}; {trace.clock}" for _, trace in traces if trace.clock
    }
    if len(set(read_as.values())) == 1:
        notes.append(f"read as {next(iter(read_as.values()))}")
    else:
        notes += [f"{name} is read as {form}" for name, form in read_as.items()]
    config = load_config(demand.config or DEFAULT_CONFIG, cautious=False)
    refuse_components(config.path, config.graphs, _NO_COMPONENTS)
    cluster = config.cluster
    if cluster.routes:
        name = cluster.routes[0].name
        raise UserError(f"{demand.config}: models.{name}: {_NO_QUALITY}")
    if demand.config is None:
        cluster = _with_names(cluster, [trace for _, trace in traces], notes)
    cluster = replace(cluster, services=tuple(replace(s, mode=Mode.ACT) for s in cluster.services))
    owners = _owners(traces, sources, cluster)
    jobs = [job for model, trace in _numbered(owners) for job in _jobs(model, trace, cluster, seed)]
    jobs.sort(key=lambda job: job.at_ms)
    _say_oddities([trace for _, trace in traces], jobs, cluster, notes)
    notes += _prefix_cache_notes([trace for _, trace in traces], demand.fluid)
    last_s = max(trace.duration_s for _, trace in traces)
    span_s = demand.to_s - demand.from_s
    duration_s = max(1.0, span_s if math.isfinite(span_s) else last_s + 1e-3)
    arrivals = [_arrival(job) for job in jobs]
    arrivals = [arrival for arrival in arrivals if arrival.at_s < duration_s]
    used = {arrival.model for arrival in arrivals}
    if not used:
        raise UserError(f"{demand.traces[0]}: no requests between --from and --to")
    idle = [s.model for s in cluster.services if s.model not in used]
    if idle:
        notes.append(f"left out, no request is for them: {', '.join(idle)}")
    services = tuple(s for s in cluster.services if s.model in used)
    cluster = replace(cluster, services=services)
    by_model = _weights(owners, weights, [service.model for service in services])
    declared = _with_priors(cluster, arrivals, by_model, duration_s, notes)
    origin_ms = next((t.origin_ms for _, t in traces if t.origin_ms is not None), None)
    origin_s = None if origin_ms is None else origin_ms / 1000.0
    rates = parse_rates(demand.rates)
    times = TraceTime(origin_s, demand.from_s + duration_s, config.instances, rates)
    script = load_supply(demand.supply, declared, demand.from_s, LEAD_S, times, notes)
    scenario = Scenario(
        declared, arrivals, duration_s, LEAD_S, script,
        weights=by_model, seed=seed, block_tokens=_block_tokens(owners, declared),
        limits=GatewayLimits(policy=RoutingPolicy(inside=demand.inside)),
    )  # fmt: skip
    return Workload(scenario, tuple(notes))


def _block_tokens(owners: Sequence[tuple[str, Trace]], cluster: Cluster) -> dict[str, int]:
    """Tokens of a block, by model, for models whose trace has block hashes. UserError if the traces
    of a model have blocks of different sizes."""
    found: dict[str, int] = {}
    for owner, trace in owners:
        named = {owner} if owner else set(trace.models) or {s.model for s in cluster.services}
        for model in named if trace.blocks else ():
            if found.setdefault(model, trace.block_tokens) != trace.block_tokens:
                raise UserError(
                    f"--trace {trace.path}: blocks of {trace.block_tokens} tokens; the other trace "
                    f"of {model} has blocks of {found[model]}"
                )
    return found


def _weights(
    owners: Sequence[tuple[str, Trace]], weights: Sequence[float], models: Sequence[str]
) -> dict[str, float]:
    """Requests per arrival, by model. UserError if the traces of a model have different weights."""
    found: dict[str, float] = {}
    for (owner, trace), weight in zip(owners, weights, strict=True):
        named = {owner} if owner else set(trace.models) or set(models)
        for model in named & set(models):
            if found.setdefault(model, weight) != weight:
                raise UserError(
                    f"--trace {trace.path}: {model} has another trace, and one of them has more "
                    "requests than are drawn singly; give each model one trace"
                )
    return found


def _slice(
    demand: Demand, source: TraceSource, random: np.random.Generator, most: int
) -> tuple[Trace, float]:
    """The requests of `source` within the slice, and how many requests each of them represents.

    most: with rates, the most requests that are drawn from a ServeGen record.
    """
    path = source.path
    if is_servegen(path):
        span = demand.from_s, demand.to_s
        return load_representatives(
            path, *span, source.scale, random, most if demand.fluid else 0, source.clients
        )
    if source.clients:
        raise UserError(f"{path}#...: only the clients of a ServeGen record can be taken")
    trace = load_trace(path, demand.columns)
    at_s = np.array(trace.arrivals_ms) / 1000.0
    inside = np.flatnonzero((at_s >= demand.from_s) & (at_s < demand.to_s))
    if not len(inside):
        raise NoRequests(
            f"{path}: no requests from {demand.from_s:g} s on; the last is at {at_s[-1]:g} s"
            if demand.from_s > at_s[-1]
            else f"{path}: no requests between --from and --to"
        )
    sessions = np.array(trace.sessions)[inside] if trace.sessions else None
    chosen, copies, shift = _scaled(len(inside), source.scale, random, sessions)
    rows = inside[chosen]
    if not len(rows):
        raise NoRequests(f"{path}: a rate scale of {source.scale:g} leaves no request")
    times = np.maximum(0.0, at_s[rows] - demand.from_s + shift)
    order = np.argsort(times, kind="stable")
    rows, times, copies = rows[order], times[order], copies[order]
    cut = replace(
        trace,
        arrivals_ms=type(trace.arrivals_ms)("d", (1000.0 * times).tolist()),
        input_tokens=type(trace.input_tokens)("q", [trace.input_tokens[i] for i in rows]),
        output_tokens=type(trace.output_tokens)("q", [trace.output_tokens[i] for i in rows]),
        models=tuple(trace.models[i] for i in rows) if trace.models else (),
        sessions=type(trace.sessions)("q", _copied(trace, rows, copies)),
        delays_ms=type(trace.delays_ms)("d", [trace.delays_ms[i] for i in rows if trace.sessions]),
        blocks=_copied_blocks(trace, rows, copies),
    )
    return cut, 1.0


def _copied(trace: Trace, rows: np.ndarray, copies: np.ndarray) -> list[int]:
    """The sessions of `rows`. Each copy of a session gets its own number."""
    if not trace.sessions:
        return []
    sessions = np.array(trace.sessions)[rows]
    times = int(copies.max()) + 1
    return [int(s) for s in np.where(sessions < 0, NO_SESSION, sessions * times + copies)]


def _copied_blocks(trace: Trace, rows: np.ndarray, copies: np.ndarray) -> tuple[array[int], ...]:
    """The blocks of `rows`. Copies of a request share no block with the original, because repeated
    prompts would raise the hit rate."""
    if not trace.blocks:
        return ()
    return tuple(
        array("q", [copy << _COPY_BITS ^ value for value in trace.blocks[row]])
        if copy
        else trace.blocks[row]
        for row, copy in zip(rows.tolist(), copies.tolist(), strict=True)
    )


def _scaled(
    count: int, scale: float, random: np.random.Generator, sessions: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows that are drawn to scale the rate of `count` requests.

    Returns the indices of the drawn rows, the number of each copy (from 0), and its shift in
    seconds. A row may be drawn several times. To lower the rate, requests are drawn at random. To
    raise it, copies are placed within a few seconds of the original. The rate keeps its shape over
    time, and bursts grow with it. Requests of a session share one draw.
    """
    if scale == 1.0:
        return np.arange(count), np.zeros(count, np.int64), np.zeros(count)
    whole = int(scale)
    draws = random.random(count)
    if sessions is not None:
        draws = np.where(sessions < 0, draws, draws[sessions % count])
    times = whole + (draws < scale - whole)
    chosen = np.repeat(np.arange(count), times)
    starts = np.cumsum(times) - times
    copies = np.arange(len(chosen)) - np.repeat(starts, times)
    shift = np.where(copies == 0, 0.0, random.uniform(-_SPREAD_S, _SPREAD_S, len(chosen)))
    return chosen, copies, shift


def _with_names(cluster: Cluster, traces: Sequence[Trace], notes: list[str]) -> Cluster:
    """The bundled cluster, with its models renamed if it lacks a model name of the traces: the
    busiest name gets the smallest model, the next name the next larger model."""
    named = Counter(name for trace in traces for name in trace.models)
    known = {service.model: service for service in cluster.services}
    if all(name in known for name in named):
        return cluster
    kinds = cluster.services[::-1]
    services = []
    for index, (name, _) in enumerate(sorted(named.items(), key=lambda item: (-item[1], item[0]))):
        like = kinds[index % len(kinds)]
        services.append(replace(like, model=name))
        notes.append(f"no --config: {name} is run as {like.architecture.name}")
    return replace(cluster, services=tuple(services))


def _owners(
    traces: Sequence[tuple[str, Trace]], sources: Sequence[TraceSource], cluster: Cluster
) -> list[tuple[str, Trace]]:
    """Each trace with its model.

    "" if the trace names models itself, or is split among all models. sources: those of all traces,
    with those that have no request in the slice.
    """
    models = [service.model for service in cluster.services]
    for source in sources:
        if source.model and source.model not in models:
            raise UserError(f"--trace {source.model}={source.path}: models are {', '.join(models)}")
    if len(sources) == 1:
        return list(traces)
    named = {source.model for source in sources}
    free = [model for model in models if model not in named]
    found = []
    for name, trace in traces:
        if name or trace.models:
            found.append((name, trace))
        elif free:
            found.append((free.pop(0), trace))
        else:
            raise UserError(
                f"--trace {trace.path}: {len(sources)} traces for {len(models)} models "
                f"({', '.join(models)}); at most one per model"
            )
    return found


def _numbered(owners: Sequence[tuple[str, Trace]]) -> list[tuple[str, Trace]]:
    """The traces of `owners`, with session numbers that are unique over all traces."""
    found = []
    first = 0
    for model, trace in owners:
        if trace.sessions:
            shifted = [s + first if s >= 0 else NO_SESSION for s in trace.sessions]
            first = max(shifted) + 1
            trace = replace(trace, sessions=type(trace.sessions)("q", shifted))
        found.append((model, trace))
    return found


def _arrival(job: Job) -> Arrival:
    delay_s = None if job.delay_ms is None else job.delay_ms / 1000.0
    return Arrival(
        job.at_ms / 1000.0,
        job.model,
        job.input_tokens,
        job.output_tokens,
        session=job.session,
        delay_s=delay_s,
        blocks=job.blocks,
    )


def _jobs(model: str, trace: Trace, cluster: Cluster, seed: int) -> list[Job]:
    services = {s.model: s for s in cluster.services if not model or s.model == model}
    weights = {name: service.traffic_share for name, service in services.items()}
    if model:
        weights, trace = {model: 1.0}, replace(trace, models=())
    longest = {name: service.max_len_tokens for name, service in services.items()}
    return schedule(trace, weights, longest, seed, math.inf)


def _say_oddities(
    traces: Sequence[Trace], jobs: Sequence[Job], cluster: Cluster, notes: list[str]
) -> None:
    longest = {service.model: service.max_len_tokens for service in cluster.services}
    if turns := sum(trace.turns for trace in traces):
        notes.append(f"{_requests(turns)} of sessions: each turn waits for the answer before it")
    empty = sum(t == 0 for trace in traces for t in trace.input_tokens)
    silent = sum(t == 0 for trace in traces for t in trace.output_tokens)
    huge = sum(job.input_tokens + job.output_tokens > longest[job.model] for job in jobs)
    if empty:
        notes.append(f"{_requests(empty)} with a prompt of 0 tokens counted as 1 token")
    if silent:
        notes.append(f"{_requests(silent)} with 0 output tokens counted as 1 token")
    if huge == 1:
        notes.append("1 request is longer than its model's max_len: it fails everywhere")
    elif huge:
        notes.append(f"{huge} requests are longer than their model's max_len: they fail everywhere")


def _prefix_cache_notes(traces: Sequence[Trace], fluid: bool) -> list[str]:
    """How prefix caches are simulated."""
    if fluid:
        return ["rates are simulated, without prefix caches"]
    notes = []
    for trace in traces:
        if trace.blocks:
            share = endless_hit_rate(trace.input_tokens, trace.blocks, trace.block_tokens)
            notes.append(
                f"{trace.path.name}: engines cache prefixes in blocks of {trace.block_tokens} "
                f"tokens; one endless cache would hold {share:.0%} of the prompt tokens"
            )
        else:
            notes.append("the trace has no block hashes: no prefix cache is simulated")
    return list(dict.fromkeys(notes))


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count} requests"


def _with_priors(
    cluster: Cluster,
    arrivals: Sequence[Arrival],
    weights: Mapping[str, float],
    duration_s: float,
    notes: list[str],
) -> Cluster:
    """Models without a declared workload get the demand of the trace's first minutes as prior."""
    span_s = min(PRIOR_S, duration_s)
    early = fitting_arrivals((a for a in arrivals if a.at_s < span_s), cluster.services)
    lengths = measured_lengths(early)
    count = Counter(arrival.model for arrival in early)
    services = []
    told = []
    for service in cluster.services:
        if not (service.req_per_s or service.rate_declared) and count[service.model]:
            told.append(service.model)
            found = service.lengths
            if found == _UNDECLARED:
                found = lengths[service.model]
            rate = weights.get(service.model, 1.0) * count[service.model] / span_s
            service = replace(service, req_per_s=rate, lengths=found)
        services.append(service)
    if told:
        notes.append(
            f"no workload is declared for {', '.join(told)}: every policy starts with the rate of "
            f"the first {span_s:.0f} s"
        )
    return replace(cluster, services=tuple(services))
