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
from streams.controller.controller_options import add_operator_options, operator_options_argv
from streams.files.components_section import refuse_components
from streams.files.memory_check import refuse_misfits
from streams.files.plan_inputs import with_workload
from streams.files.shoal_yaml import load_config
from streams.files.user_errors import UserError
from streams.health.listen_address import parse_listen
from streams.logs import add_log_level
from streams.tools.replay.traces import COLUMNS_HELP, load_trace, parse_columns
from streams.tools.up.child_processes import ChildFailed
from streams.tools.up.host_resources import check_listen
from streams.tools.up.live_view import View
from streams.tools.up.real_engines import prepare
from streams.tools.up.run_options import Wishes
from streams.tools.up.run_summary import show
from streams.tools.up.session import Session
from streams.tools.up.trace_facts import traffic, with_first_minutes

# The default configuration, trace and speed for each kind of engine.
_DEMOS = {
    "simulated": ("demo.yaml", "azure2023_conv.csv.gz", 10.0),
    "vllm": ("vllm.yaml", "vllm_trace.csv", 1.0),
}
ANY_PORT = "127.0.0.1:0"
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
        choices=sorted(_DEMOS),
        default="simulated",
        help="vllm: real vLLM servers on CPUs (two at most), each with a tiny model without "
        "weights; needs 6 GB of disk and 2 GB of memory per server, downloads once",
    )
    parser.add_argument(
        "--speed",
        metavar="X",
        help="domain seconds per real second (default 10; judge latencies at 5 or less)",
    )
    parser.add_argument(
        "--trace",
        metavar="FILE",
        help="of any form in docs/reference/formats.md (default: Azure 2023 conversations; with "
        "--engine vllm a short burst)",
    )
    parser.add_argument("--columns", metavar="FIELD=COLUMN,...", help=COLUMNS_HELP)
    parser.add_argument("--summary", metavar="FILE", help="write the summary as JSON")
    parser.add_argument(
        "--config", metavar="FILE", help="a shoal.yaml (default: the example with three models)"
    )
    parser.add_argument(
        "--broker", metavar="kafka://HOST:PORT", help="a real Kafka (default: the embedded broker)"
    )
    parser.add_argument("--port", default="0", help="of the gateway (default: any free one)")
    parser.add_argument("--seed", default="1", help="of the draw that spreads requests over models")
    add_operator_options(parser, http=ANY_PORT)
    add_log_level(parser)
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
    summary["otherwise"] = _otherwise(session, wishes, signalled)
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


def _otherwise(session: Session, wishes: Wishes, signalled: list[int]) -> list[dict[str, Any]]:
    """The cost of other policies for the recorded demand. Ctrl-C skips the remaining ones.

    After SIGTERM none is compared, because the sender waits for the end of this process.
    """
    if any(number != signal.SIGINT for number in signalled):
        return []
    limit_s = _WORTH_INTERRUPTED_S if signalled else _WORTH_S
    found: list[dict[str, Any]] = []
    try:
        from streams.tools.up.counterfactual_cost import (
            compare,  # This imports a compiler, which would delay the start.
        )

        started_s = time.monotonic()
        for one in compare(
            wishes.config.cluster,
            session.picture,
            session.ended_ms,
            lambda: time.monotonic() - started_s,
            limit_s,
        ):
            found.append(one.as_json())  # noqa: PERF401  Ctrl-C keeps the results so far
    except KeyboardInterrupt:
        pass
    return found


def _wishes(args: argparse.Namespace) -> Wishes:
    demo_config, demo_trace, demo_speed = _DEMOS[args.engine]
    speed = demo_speed if args.speed is None else _number("--speed", args.speed, 0.01, 1000.0)
    if args.engine == "vllm" and speed != 1.0:
        raise InvalidValue(
            "--speed", args.speed, "1 with --engine vllm: real engines take real time"
        )
    for_s = 0.0 if args.for_s is None else _number("--for", args.for_s, 1.0, 30 * 86400.0)
    port = _whole("--port", args.port, 65535)
    seed = _whole("--seed", args.seed, 2**31)
    broker = _broker("--broker", args.broker)
    if args.http:
        check_listen("--http", *parse_listen(args.http))
    data = resources.files("streams").joinpath("data")
    config_path = Path(args.config) if args.config else Path(str(data.joinpath(demo_config)))
    config = load_config(config_path, mode=Mode.ACT, cautious=False)
    refuse_misfits(config)
    if args.engine == "vllm":
        why = "--engine vllm: no vLLM server runs a stage of a model of components"
        refuse_components(config.path, config.graphs, why)
    trace_path = Path(args.trace) if args.trace else Path(str(data.joinpath(demo_trace)))
    trace = load_trace(trace_path, parse_columns(args.columns))
    demands = with_first_minutes(config.cluster, trace, seed)
    return Wishes(
        config=replace(config, cluster=with_workload(config.cluster, demands)),
        config_path=config_path.resolve(),
        trace=trace_path.resolve(),
        columns=args.columns or "",
        traffic=traffic(trace),
        speed=speed,
        for_s=for_s,
        broker=broker or _broker(f"{config.path}: kafka", config.kafka or None),
        gateway_port=port,
        seed=seed,
        demands=demands,
        log_level=args.log_level,
        operated=operator_options_argv(args),
    )


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
