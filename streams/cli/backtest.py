"""`shoal backtest`: cost and service quality of policies on a recorded trace.

The command tunes the policies, runs them, sweeps their knobs for the curves and writes the report.
This module has the command line, the progress bar and the order of these steps.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from autoscaler.domain.validation import InvalidValue, finite, whole
from autoscaler.serving.routing_policies import WithinCombo
from autoscaler.simulation.cost_causes import CostCause, MissCause
from autoscaler.simulation.hindsight import hindsight_cost
from autoscaler.simulation.policies.policy import Policy
from autoscaler.simulation.policies.registry import DEFAULT, POLICIES, VARIANTS, policies_by_name
from streams.cli.interrupts import sigterm_unwinds, workers_spared
from streams.files import units
from streams.files.csv_rows import cause_of
from streams.files.currencies import RATE_HELP
from streams.files.output_files import refuse_unwritable
from streams.files.prometheus_section import PrometheusServer
from streams.files.prometheus_section import url as server_url
from streams.files.served_names import served_names
from streams.files.shoal_yaml import load_config
from streams.files.user_errors import UserError, without_login
from streams.health.listen_address import parse_listen
from streams.ports.vllm_queries import MetricSource, metric_sources
from streams.terminal_console import SafeConsole
from streams.tools.backtest.backtest_demand import DEFAULT_CONFIG, Workload
from streams.tools.backtest.backtest_report import Backtest, Row, as_json, table
from streams.tools.backtest.backtest_runs import BACKENDS, Outcome, Run, prepared, run_all
from streams.tools.backtest.demand_options import Demand
from streams.tools.backtest.html_report import page
from streams.tools.backtest.object_policy import policy_of
from streams.tools.backtest.policy_tuning import chosen
from streams.tools.backtest.prometheus_source import ask_range
from streams.tools.backtest.prometheus_trace import rebuild, together
from streams.tools.playback.recording_server import ANY_PORT, document, serve
from streams.tools.replay.traces import COLUMNS_HELP, parse_columns

_FLUID = tuple(name for name in DEFAULT if name != "fixed-best")
"""Without --policies, with --fluid: the search for the best fixed fleet takes hours for a week."""
_ALL_CORES = -1
_LEAST_SCALE, _MOST_SCALE = 1e-4, 1e4
_WIDTH = 110  # characters of the table; narrower terminals wrap it
_EPILOG = """policies: {names}; "variants" is ours without each part. "hindsight", the cheapest
plan for a demand that is known beforehand, and "oracle", a lower bound, are always there. A trace
is a file of any form in docs/reference/formats.md, a CSV, JSON or Parquet file with columns for
time, input and output tokens, or ServeGen's windows."""


def add_parser(subparsers: Any) -> None:
    """Add the command to the command line."""
    parser = subparsers.add_parser(
        "backtest",
        help="replay traces in simulation under several policies",
        epilog=_EPILOG.format(names=", ".join(POLICIES)),
    )
    option = parser.add_argument
    option("--trace", nargs="+", metavar="FILE", help="or MODEL=FILE, one per model; FILE#0,3-5 "
           "takes these clients of a ServeGen record")  # fmt: skip
    option("--columns", metavar="FIELD=COLUMN,...", help=COLUMNS_HELP)
    option(
        "--prometheus", metavar="URL", help="instead of --trace: rebuild one from vLLM's metrics"
    )
    option("--since", metavar="T", help="with --prometheus: how far back (default 7d)")
    option("--config", type=Path, metavar="FILE", help="a shoal.yaml (default: three models)")
    option("--supply", nargs="+", default=[], metavar="FILE", help="prices and available nodes "
           "over time: time,pool,price,nodes, or POOL=FILE with time,nodes")  # fmt: skip
    option("--rate", action="append", default=[], metavar="CURRENCY=USD", help=RATE_HELP)
    option("--policies", metavar="A,B", help="default: all but variants")
    option("--policy", nargs="+", default=[], metavar="FILE", help="also simulate the HPA or KEDA "
           "objects in this YAML file (without --policies: against shoal)")  # fmt: skip
    option("--fluid", action="store_true", help="simulate rates instead of requests: for weeks at "
           "once; default policies: all but fixed-best and variants")  # fmt: skip
    option(
        "--inside",
        choices=[*WithinCombo],
        default=WithinCombo.OPPORTUNISTIC,
        type=WithinCombo,
        help="which instance of a combo takes a request, as in `shoal gateway` (%(default)s)",
    )
    option("--tune", nargs="+", metavar="FILE", help="choose each policy's knob on other traces")
    option("--also", nargs="+", default=[], metavar="FILE", help="judge each of these files "
           "too, with the same knobs, --from, --to, --supply: figures are means")  # fmt: skip
    option("--no-curves", action="store_true", help="with --report: do not sweep the knobs")
    option("--rate-scale", type=float, default=1.0, metavar="X", help="multiply the rate")
    option("--scale", nargs="+", default=[], metavar="MODEL=X", help="multiply the rate of one "
           "model, in addition to --rate-scale")  # fmt: skip
    option("--from", dest="begin", metavar="T", help="begin at this time of the trace, e.g. 10m")
    option("--to", dest="end", metavar="T", help="end at this time of the trace, e.g. 2h")
    option("--seed", type=int, default=1, help="the first seed (default 1)")
    option("--seeds", type=int, default=1, metavar="N", help="number of seeds; prints intervals")
    option("--report", type=Path, metavar="FILE", help="an HTML page with charts")
    option("--json", type=Path, metavar="FILE", help="write all figures")
    option("--timeline", metavar="FILE", help="requests and nodes as JSON lines, of the first "
           "policy and seed; {policy} in the name: of each policy")  # fmt: skip
    option("--serve", nargs="?", const=ANY_PORT, metavar="HOST:PORT", help="show the runs of the "
           "first seed in the console with a time slider (default %(const)s)")  # fmt: skip
    option("--jobs", type=int, metavar="N", help="processes (default: all cores)")
    option("--backend", choices=BACKENDS, default="local", help="where the runs are computed")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the backtest. UserError and InvalidValue become one line and exit code 2."""
    policies = (*_named(args), *(policy_of(file) for file in dict.fromkeys(args.policy)))
    if not policies:
        raise InvalidValue("--policies", args.policies, f"one of {', '.join(POLICIES)}")
    if args.fluid and args.timeline:
        raise UserError("--timeline: with --fluid there are no single requests to write")
    if args.serve:
        parse_listen(args.serve, "--serve")
    finite("--rate-scale", args.rate_scale, _LEAST_SCALE, _MOST_SCALE)
    whole("--seeds", args.seeds, 1, 1000)
    whole("--seed", args.seed, 0, 2**31)
    if args.jobs is not None:
        whole("--jobs", args.jobs, 1, 4096)
    if bool(args.trace) == bool(args.prometheus):
        raise UserError("expected either --trace FILE or --prometheus URL")
    _refuse_idle(args)
    with sigterm_unwinds(), tempfile.TemporaryDirectory(prefix="shoal-backtest-") as folder:
        if args.prometheus:
            args.trace = [str(_rebuilt(args, Path(folder)))]
        return _run_all(args, policies)


def _named(args: argparse.Namespace) -> tuple[Policy, ...]:
    """The policies of --policies, or those that run without it."""
    if args.policies is not None:
        names = [name.strip() for name in args.policies.split(",") if name.strip()]
    elif args.policy:
        names = ["shoal"]
    else:
        names = list(_FLUID if args.fluid else DEFAULT)
    return policies_by_name(names)


def _refuse_idle(args: argparse.Namespace) -> None:
    """UserError for an option without effect, and for a trace that is named twice."""
    if args.since is not None and not args.prometheus:
        raise UserError("--since: only with --prometheus; --from and --to cut a trace")
    if args.fluid and args.inside is not WithinCombo.OPPORTUNISTIC:
        raise UserError("--inside: with --fluid there are no single requests to route")
    for text in args.trace or ():
        if args.trace.count(text) > 1:
            raise UserError(f"--trace {text}: is given twice; --rate-scale 2 doubles the load")


def _rebuilt(args: argparse.Namespace, folder: Path) -> Path:
    """Rebuild a trace from a Prometheus server and print its notes. Returns the
    path of the trace.
    """
    since_s = _seconds("--since", args.since, 7 * 86_400.0)
    finite("--since", since_s, 120.0, 31 * 86_400.0)
    config = load_config(args.config or DEFAULT_CONFIG)
    served = served_names(config.cluster.services)
    groups: dict[MetricSource, dict[str, str]] = {}
    for model, source in metric_sources(config.cluster.services).items():
        groups.setdefault(source, {}).update(dict.fromkeys(served[model], model))
    servers = {server.url: server for server in config.prometheus.values()}
    try:
        url = server_url(args.prometheus)
    except InvalidValue as error:
        raise InvalidValue("--prometheus", without_login(args.prometheus), error.allowed) from None
    to_s = int(time.time()) // 60 * 60
    ask = ask_range(servers.get(url, PrometheusServer(url)))
    shown = without_login(args.prometheus)
    declared = args.config is not None
    traces = []
    for number, (source, names) in enumerate(groups.items()):
        into = folder / str(number)
        into.mkdir()
        given = (names, declared, source)
        traces.append(rebuild(ask, shown, to_s, since_s, into, args.seed, *given))
    found = together(traces, folder)
    for note in found.notes:
        print(f"note: {note}")
    return found.path


def _run_all(args: argparse.Namespace, policies: Sequence[Policy]) -> int:
    demand = Demand(
        tuple(args.trace),
        args.config,
        args.rate_scale,
        _seconds("--from", args.begin, 0.0),
        _seconds("--to", args.end, math.inf),
        tuple(args.supply),
        args.fluid,
        parse_columns(args.columns),
        tuple(_scale(text) for text in args.scale),
        tuple(args.rate),
        args.inside,
    )
    if demand.from_s >= demand.to_s:
        raise UserError(f"--from {args.begin}: not before --to {args.end}")
    for path in (args.report, args.json, args.timeline and Path(args.timeline)):
        if path:
            refuse_unwritable(path)
    with workers_spared():
        found = backtest(args, policies, demand)
    _show(found, SafeConsole())
    for path, content in ((args.json, as_json), (args.report, page)):
        if path:
            _write(path, content(found))
    if args.serve:
        _serve(args.serve, demand, found)
    return 0


def _serve(address: str, demand: Demand, found: Backtest) -> None:
    """Serve the recorded runs of the first trace and seed."""
    scenario = found.workloads[0].scenario
    origin_ms = found.recordings[0].origin_ms
    from_ms, to_ms = (int(origin_ms + 1000 * s) for s in (scenario.lead_s, scenario.end_s))
    runs = [recorded.run for recorded in found.recordings]
    title = ", ".join(Path(trace).name for trace in demand.traces)
    recording = document(title, scenario.cluster, runs, from_ms, to_ms)
    serve(address, recording, lambda url: print(f"console: {url}/ (Ctrl-C ends)", flush=True))


def _scale(text: str) -> tuple[str, float]:
    """(model, factor) of MODEL=X."""
    model, equals, factor = text.partition("=")
    try:
        value = float(factor)
    except ValueError:
        value = math.nan
    if not (model and equals and _LEAST_SCALE <= value <= _MOST_SCALE):
        raise InvalidValue(
            "--scale", text, f"MODEL=X with X from {_LEAST_SCALE:g} to {_MOST_SCALE:g}"
        )
    return model, value


def _write(path: Path, content: bytes | str) -> None:
    try:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({cause_of(error)})") from None


def backtest(args: argparse.Namespace, policies: Sequence[Policy], demand: Demand) -> Backtest:
    """Tune, run and sweep the policies, and return all results in one object."""
    known: dict[Run, Outcome] = {}
    seeds = tuple(range(args.seed, args.seed + args.seeds))
    workload, _ = prepared(demand, seeds[0])  # refuses bad input before anything runs
    judged = (demand, *(demand.on((trace,)) for trace in args.also))
    workloads = [workload]
    for one in judged[1:]:
        workloads.append(prepared(one, seeds[0])[0])
        _same_models(workload, workloads[-1], one.traces[0])
    tuned: dict[str, float] = {}
    if args.tune:
        other = replace(
            demand, traces=tuple(args.tune), from_s=0.0, to_s=math.inf, supply=(), scales=()
        )
        prepared(other, seeds[0])
        sweep = [
            Run(other, policy.name, value, seeds[0])
            for policy in policies
            if policy.tuned and policy.name not in VARIANTS
            for value in policy.values
        ]
        tuned = chosen(_run("tuning", sweep, args, known), prepared(other, seeds[0])[0])
        if "shoal" in tuned:  # Variants lack a part of Shoal and use its knob.
            tuned |= {p.name: tuned["shoal"] for p in policies if p.name in VARIANTS}
    knobs = {policy.name: tuned.get(policy.name, policy.default) for policy in policies}
    main = [
        Run(
            one,
            name,
            knob,
            seed,
            _timeline(args, name, seed, policies[0].name, one is demand),
            recorded=bool(args.serve) and one is demand and seed == seeds[0],
        )
        for one in judged  # This is the outer loop, because a worker keeps few workloads.
        for seed in seeds
        for name, knob in (*knobs.items(), (hindsight_cost.NAME, 0.0))
    ]
    outcomes = _run("simulating", main, args, known)
    curves: dict[str, tuple[Row, ...]] = {}
    if args.report and not args.no_curves:
        swept = {p.name: p.values for p in policies if p.name not in VARIANTS}
        found = _run(
            "sweeping knobs",
            [
                Run(one, name, value, seed)
                for one in judged
                for seed in seeds
                for name, values in swept.items()
                for value in values
            ],
            args,
            known,
        )
        curves = {
            name: tuple(_row(name, value, found) for value in values)
            for name, values in swept.items()
        }
    plans = [outcome.hindsight for outcome in outcomes if outcome.hindsight is not None]
    return Backtest(
        demand.traces,
        tuple(args.also),
        tuple(workloads),
        seeds,
        tuple(_row(name, knob, outcomes) for name, knob in knobs.items()),
        curves,
        hindsight_cost.mean_of(plans),
        tuned,
        tuple(one.recording for one in outcomes if one.recording is not None),
    )


def _same_models(workload: Workload, other: Workload, trace: str) -> None:
    """UserError if `other`, the workload of `trace`, has other models.

    Means over both would have no meaning.
    """
    names, found = (
        sorted(service.model for service in one.scenario.cluster.services)
        for one in (workload, other)
    )
    if found != names:
        wanted = ", ".join(names) + (", all in this one file" if len(names) > 1 else "")
        raise UserError(f"--also {trace}: models {', '.join(found)}; allowed: {wanted}")


def _row(policy: str, knob: float, outcomes: Sequence[Outcome]) -> Row:
    """The scores of `policy` at `knob`, over all traces and seeds."""
    mine = (o.score for o in outcomes if (o.run.policy, o.run.knob) == (policy, knob))
    return Row(policy, knob, tuple(score for score in mine if score is not None))


def _run(
    what: str, runs: Sequence[Run], args: argparse.Namespace, known: dict[Run, Outcome]
) -> list[Outcome]:
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=SafeConsole(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    with bar:
        task = bar.add_task(what, total=len(runs))
        return run_all(
            runs, args.jobs or _ALL_CORES, args.backend, lambda _: bar.advance(task), known
        )


def _timeline(
    args: argparse.Namespace, policy: str, seed: int, first: str, of_trace: bool
) -> Path | None:
    if not args.timeline or seed != args.seed or not of_trace:
        return None
    if "{policy}" in args.timeline:
        return Path(args.timeline.replace("{policy}", policy))
    return Path(args.timeline) if policy == first else None


def _seconds(option: str, text: str | None, otherwise: float) -> float:
    if text is None:
        return otherwise
    if text in ("0", "0s"):
        return 0.0
    return units.named_duration_s(option, text)


def _show(found: Backtest, console: Console) -> None:
    files = (Path(trace.rpartition("#")[0] or trace) for trace in (*found.traces, *found.also))
    names = dict.fromkeys(path.name for path in files)
    print(f"{', '.join(names)}: {found.size}")
    for note in found.notes:
        print(f"note: {note}")
    header, *lines = table(found)
    shown = Table(box=None, pad_edge=False)
    for index, title in enumerate(header):
        shown.add_column(title, justify="left" if index == 0 else "right", no_wrap=True)
    for line in lines:
        shown.add_row(*line)
    console.width = max(console.width, _WIDTH)
    console.print(shown)
    for row in found.rows:
        for model, one in row.scores[0].models.items():
            if one.requests and not one.served:
                print(f"{row.policy}: no request of {model} was served")
    for row in found.rows:
        if row.policy == "shoal":
            print(f"shoal's rent paid for {_parts(row.cost_by_cause(), '{:.2f} USD')}")
            print(f"shoal's misses: {_parts(row.missed_by_cause(), '{:.2%}')}")
        if row.policy == "shoal" and (better := found.undercut_by(row)):
            print(f"{', '.join(better)}: as good within 0.5 points for less money than shoal")


def _parts(by_cause: Mapping[CostCause, float] | Mapping[MissCause, float], form: str) -> str:
    """The parts that are not 0, largest first."""
    ranked = sorted(by_cause.items(), key=lambda item: -item[1])
    shown = ((cause, form.format(value)) for cause, value in ranked)
    parts = [f"{cause.replace('_', ' ')} {text}" for cause, text in shown if text != form.format(0)]
    return ", ".join(parts) or "none"
