"""`shoal up`: run the whole system on this machine.

This module checks the options, handles signals and sets the exit code. `streams.tools.up.session`
performs the run.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
import tempfile
import time
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import orjson

from autoscaler.domain.cluster import Mode
from autoscaler.domain.validation import InvalidValue, finite, whole
from streams.broker.broker_reach import parse_address
from streams.controller.controller_options import HTTP, add_operator_options, operator_options_argv
from streams.files.components_section import refuse_components
from streams.files.currencies import RATE_HELP, parse_rates
from streams.files.memory_check import refuse_misfits
from streams.files.plan_inputs import with_workload
from streams.files.shoal_yaml import load_config
from streams.files.user_errors import UserError
from streams.health.listen_address import parse_listen
from streams.tools.backtest.supply_files import TraceTime, load_supply
from streams.tools.replay.traces import COLUMNS_HELP, load_trace, parse_columns
from streams.tools.up.child_processes import ChildFailed
from streams.tools.up.host_resources import can_listen, check_listen
from streams.tools.up.live_view import View
from streams.tools.up.real_engines import prepare
from streams.tools.up.run_options import Wishes
from streams.tools.up.scenario_file import (
    SHIPPED,
    demand_changes,
    open_scenario,
    read_events,
    read_settings,
)
from streams.tools.up.session import Session
from streams.tools.up.summary_view import show
from streams.tools.up.trace_facts import replayed, traffic, with_first_minutes
from topics.edge.logs import add_log_options, log_options_argv

_ANY_PORT = "127.0.0.1:0"
_WORTH_S, _WORTH_INTERRUPTED_S = 20.0, 6.0


def add_parser(subparsers: Any) -> None:
    """Add `up` to the command line."""
    parser = subparsers.add_parser(
        "up",
        help="run the whole loop on this machine, with simulated engines or tiny real ones",
        description="Start broker, controller, executors, gateway and a replayed trace on "
        "loopback; show what happens; end with a summary. Ctrl-C stops everything.",
    )
    parser.add_argument(
        "--for",
        dest="for_s",
        metavar="S",
        help="end after S real seconds (default: when the trace ends); with --engine vllm they "
        "count from the moment the first engine serves",
    )
    parser.add_argument(
        "--engine",
        choices=("simulated", "vllm"),
        default="simulated",
        help="vllm: real vLLM servers on CPUs (two at most), each with a tiny model without "
        "weights; needs 6 GB of disk and 2 GB of memory per server, downloads once",
    )
    parser.add_argument(
        "--speed",
        metavar="X",
        help="domain seconds per real second (default: the scenario's, 10 if it names none; judge "
        "latencies at 5 or less)",
    )
    parser.add_argument(
        "--trace",
        metavar="FILE",
        help="trace in a form of docs/reference/formats.md (default: the scenario's; with "
        "--engine vllm a short burst)",
    )
    parser.add_argument("--columns", metavar="FIELD=COLUMN,...", help=COLUMNS_HELP)
    parser.add_argument(
        "--scenario",
        metavar="NAME|FILE",
        help=f"events to play: {', '.join(SHIPPED)}, or a file as in docs/how-to/scenario.md "
        "(default: day; calm with --trace or --config, and with --engine vllm)",
    )
    parser.add_argument(
        "--rate", action="append", default=[], metavar="CURRENCY=USD", help=RATE_HELP
    )
    parser.add_argument(
        "--supply",
        action="append",
        default=[],
        metavar="FILE",
        help="prices and available nodes over time: time,pool,price,nodes, or POOL=FILE with "
        "time,nodes; may be given several times",
    )
    parser.add_argument("--summary", metavar="FILE", help="write the summary as JSON")
    parser.add_argument("--config", metavar="FILE", help="a shoal.yaml (default: the scenario's)")
    parser.add_argument(
        "--broker", metavar="kafka://HOST:PORT", help="a real Kafka (default: the embedded broker)"
    )
    parser.add_argument("--port", default="0", help="port of the gateway (default: any free one)")
    parser.add_argument(
        "--seed", default="1", help="seed of the draw that spreads requests over models"
    )
    add_operator_options(parser, http=f"{HTTP}, or any free port if that one is in use")
    parser.set_defaults(http=None)
    add_log_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the system. Exit code 0; 130 or 143 after a signal; 1 if a part failed and could not be
    restarted.

    Raises UserError for bad input.
    """
    wishes = _wishes(args)
    summary_path = _writable(args.summary)
    if args.engine == "vllm":
        with tempfile.TemporaryDirectory(prefix="shoal-vllm-") as folder:
            real = prepare(Path(folder))
            return _run(replace(wishes, real=real), summary_path)
    return _run(wishes, summary_path)


def _run(wishes: Wishes, summary_path: Path | None) -> int:
    # A Kafka client logs each retry, which would disturb the view on the terminal.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    view = View()
    session = Session(wishes, view)
    signalled: list[int] = []

    async def main() -> dict[str, Any]:
        loop = asyncio.get_running_loop()

        def stop(number: int) -> None:
            signalled.append(number)
            session.interrupt()

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, stop, number)
        return await session.run()

    try:
        summary = asyncio.run(main())
    except ChildFailed as error:
        sys.stderr.write(f"shoal: {error}\n")
        _tell_logs(session)
        return 1  # The input was valid, but a part failed.
    except Exception:
        _tell_logs(session)
        raise
    _compare(summary, session, wishes, signalled)
    show(summary, view.console)
    unwritten = _write(summary_path, summary) if summary_path is not None else ""
    if summary_path is not None and not unwritten:
        view.console.print(f"summary written to {summary_path}", soft_wrap=True)
    sys.stdout.flush()
    if unwritten:
        sys.stderr.write(f"shoal: {unwritten}\n")
    if session.lost and not signalled:
        sys.stderr.write(f"shoal: lost under way: {session.lost}\n")
    _tell_logs(session)
    if (session.lost or unwritten) and not signalled:
        return 1
    return 128 + signalled[0] if signalled else 0


def _tell_logs(session: Session) -> None:
    if session.logs is not None:
        sys.stderr.write(f"shoal: the logs of this run are in {session.logs}\n")


def _compare(
    summary: dict[str, Any], session: Session, wishes: Wishes, signalled: list[int]
) -> None:
    """Add plans for the demand of the run to `summary`, and other policies in its world if it
    played a scenario. Ctrl-C skips the remaining ones.

    After SIGTERM none is compared, because the sender waits for the end of this process.
    """
    if any(number != signal.SIGINT for number in signalled):
        return
    limit_s = _WORTH_INTERRUPTED_S if signalled else _WORTH_S
    try:
        # These import a compiler, which would delay the start.
        from autoscaler.planning.planning_problem import with_prices
        from streams.tools.up.counterfactual_cost import compare
        from streams.tools.up.simulated_policies import simulated, world

        started_s = time.monotonic()
        # The other fleets pay the prices of the run, which events of the scenario changed.
        prices = session.picture.mean_prices_usd_per_h(session.ended_ms)
        for plan in compare(
            with_prices(wishes.config.cluster, prices),
            session.picture,
            session.ended_ms,
            lambda: time.monotonic() - started_s,
            limit_s,
        ):
            summary["otherwise"].append(plan.as_json())
        span = session.span(summary["requests"]["sent"])
        # A user's own trace has `shoal backtest`, and its run should end at once.
        if not wishes.scenario[0] or span is None:
            return
        trace = load_trace(wishes.trace, parse_columns(wishes.columns or None))
        scenario = world(wishes.config.cluster, trace, wishes.events, wishes.seed, span)
        if scenario is None:
            return
        began_s = time.monotonic()
        for one in simulated(scenario, lambda: time.monotonic() - began_s, limit_s):
            summary["simulated"].append(one.as_json())
    except KeyboardInterrupt:
        return  # The results so far are kept.


def _wishes(args: argparse.Namespace) -> Wishes:
    real = args.engine == "vllm"
    if real and (args.scenario or args.supply):
        option = "--scenario" if args.scenario else "--supply"
        raise UserError(f"{option}: not with --engine vllm: real engines play no scenario")
    default = "calm" if args.trace or args.config or real else "day"
    root = open_scenario(args.scenario or default)
    settings = read_settings(root)
    speed = 1.0 if real else settings.speed
    speed = speed if args.speed is None else _number("--speed", args.speed, 0.01, 1000.0)
    if real and speed != 1.0:
        raise InvalidValue(
            "--speed", args.speed, "1 with --engine vllm: real engines take real time"
        )
    for_s = 0.0 if args.for_s is None else _number("--for", args.for_s, 1.0, 30 * 86400.0)
    port = _whole("--port", args.port, 65535)
    seed = _whole("--seed", args.seed, 2**31)
    broker = _broker("--broker", args.broker)
    args.http = _http_address(args.http)
    if real:
        data = Path(str(resources.files("streams").joinpath("data")))
        settings = replace(settings, config=data / "vllm.yaml", trace=data / "vllm_trace.csv")
    config_path = Path(args.config) if args.config else settings.config
    config = load_config(config_path, mode=Mode.ACT, cautious=False)
    refuse_misfits(config)
    if args.engine == "vllm":
        why = "--engine vllm: no vLLM server runs a stage of a model of components"
        refuse_components(config.path, config.graphs, why)
    trace_path = Path(args.trace) if args.trace else settings.trace
    columns = args.columns or ("" if args.trace else settings.columns)
    trace = load_trace(trace_path, parse_columns(columns or None))
    events = read_events(root, config.cluster)
    supply = (*settings.supply, *args.supply)
    origin_s = None if trace.origin_ms is None else trace.origin_ms / 1000.0
    times = TraceTime(origin_s, trace.duration_s, config.instances, parse_rates(args.rate))
    events = (*events, *load_supply(supply, config.cluster, 0.0, 0.0, times))
    demands = with_first_minutes(config.cluster, trace, seed)
    return Wishes(
        config=replace(config, cluster=with_workload(config.cluster, demands)),
        config_path=config_path.resolve(),
        trace=trace_path.resolve(),
        columns=columns,
        traffic=replayed(traffic(trace), config.cluster, trace, seed, demand_changes(events)),
        speed=speed,
        for_s=for_s,
        broker=broker or _broker(f"{config.path}: kafka", config.kafka or None),
        gateway_port=port,
        seed=seed,
        demands=demands,
        log_options=log_options_argv(args),
        operated=operator_options_argv(args),
        scenario=(settings.name, settings.about) if args.scenario or default == "day" else ("", ""),
        events=events,
    )


def _http_address(given: str | None) -> str:
    """The address for the console and for commands: `given`, or by default the one that commands
    ask, or any free port if it is in use. UserError: `given` cannot be used."""
    if given is None:
        return HTTP if can_listen(*parse_listen(HTTP)) else _ANY_PORT
    if given:
        check_listen("--http", *parse_listen(given))
    return given


def _broker(where: str, text: str | None) -> str:
    try:
        return "" if text is None else parse_address(text)
    except InvalidValue as error:
        raise InvalidValue(where, error.value, error.allowed) from None


def _number(option: str, text: str, low: float, high: float) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InvalidValue(option, text, f"a number from {low:g} to {high:g}") from None
    return finite(option, value, low, high)


def _whole(option: str, text: str, high: int) -> int:
    try:
        return whole(option, int(text), 0, high)
    except ValueError:
        raise InvalidValue(option, text, f"a whole number from 0 to {high}") from None


def _write(path: Path, summary: dict[str, Any]) -> str:
    """Write the summary, and create its folder again if it was deleted. Returns the error or ""."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(orjson.dumps(summary, option=orjson.OPT_INDENT_2) + b"\n")
    except OSError as error:
        return f"--summary {path}: cannot be written ({error.strerror})"
    return ""


def _writable(name: str | None) -> Path | None:
    """The summary's path. UserError before the run if it cannot be written."""
    if name is None:
        return None
    path = Path(name)
    folder = path.parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UserError(f"--summary {name}: is not a file that can be written")
    return path
