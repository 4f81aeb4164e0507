"""`shoal controller`, `shoal gateway`: one process of the system by itself.

This module turns a `shoal.yaml` into the options of a part and replaces this process by the part.
The parts are separate programs (`python -m ...`), so that the serving plane never imports the
control plane.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn

from autoscaler.domain.cluster import Mode
from autoscaler.serving.routing_policies import AcrossCombos, WithinCombo
from streams.broker.broker_reach import BrokerUnreachable, greet, parse_address
from streams.cli.config_option import add_config
from streams.clock import real_time
from streams.controller.controller_options import (
    HTTP,
    add_demand_option,
    add_operator_options,
    operator_options_argv,
)
from streams.decision_log.log_folder import default_folder
from streams.files.shoal_yaml import Config, load_config
from streams.files.user_errors import UserError
from streams.gateway_models_option import declared_options, media_options
from topics.edge.logs import add_log_options, log_options_argv
from topics.topic_table import PREFIX

_PROBE_S = 3.0
_GATEWAY_SECONDS = {
    "hold-s": (30.0, "seconds that a request waits for a ready instance before 503, at least "
               "twice the expected start"),
    "queue-s": (600.0, "seconds that a request waits for a free slot before 429"),
    "stall-s": (240.0, "seconds of silence after which an engine with requests is probed"),
    "request-s": (1800.0, "longest life of a request in seconds"),
    "drain-s": (120.0, "seconds after SIGTERM in which running requests may finish"),
}  # fmt: skip


def add_common(parser: argparse.ArgumentParser) -> None:
    """The options that every part has."""
    add_config(parser, str)
    parser.add_argument("--broker", metavar="HOST:PORT", help="default: kafka in the file")
    parser.add_argument("--prefix", default=PREFIX, help=f"of topic names (default {PREFIX})")
    parser.add_argument("--id", default=socket.gethostname(), help="a name of its own (default: "
                        "the host's name)")  # fmt: skip
    add_log_options(parser)


def bootstrap(args: argparse.Namespace, config: Config) -> str:
    """The broker's address, from the option or the file. UserError if neither names one."""
    address = args.broker or config.kafka
    if not address:
        raise UserError(f"{args.config}: kafka is not set, and --broker HOST:PORT is not given")
    return parse_address(address)


def reachable(args: argparse.Namespace, config: Config, remembers: str = "") -> str:
    """The broker's address. UserError if the broker does not answer the single attempt.

    remembers: the saved state with which this part can start without a broker; "" if there is none.
    With saved state, the fault is printed on stderr and the part starts.
    """
    address = bootstrap(args, config)
    try:
        asyncio.run(greet(address, _PROBE_S))
    except BrokerUnreachable as error:
        if not remembers:
            raise UserError(str(error)) from None
        sys.stderr.write(f"shoal: {error}; continuing with {remembers}\n")
    return address


def run_controller(args: argparse.Namespace) -> int:
    """Replace this process by the controller."""
    config = load_config(args.config)
    operated = operator_options_argv(args)
    broker = reachable(args, config) if args.broker or config.kafka else ""
    if not broker:
        sys.stderr.write(
            "shoal: no Kafka is declared, so an embedded broker is started, for a trial\n"
        )
    become(
        "streams.controller", "--config", args.config, "--broker", broker,
        "--prefix", args.prefix, "--time-base", real_time().format(), "--controller-id", args.id,
        *log_options_argv(args), "--demand", args.demand, *operated,
    )  # fmt: skip


def run_windows(args: argparse.Namespace) -> int:
    """Replace this process by a window worker."""
    config = load_config(args.config)
    become(
        "streams.windows", "--broker", reachable(args, config), "--prefix", args.prefix,
        *log_options_argv(args),
    )  # fmt: skip


def run_gateway(args: argparse.Namespace) -> int:
    """Replace this process by a gateway."""
    config = load_config(args.config)
    routes = Path(args.state_dir or "", "routes.jsonl")
    remembers = f"the routes in {routes}" if routes.exists() else "no routes yet"
    broker = reachable(args, config, remembers if args.state_dir else "")
    options = [f"--{name}={getattr(args, name.replace('-', '_'))}" for name in _GATEWAY_SECONDS]
    options += [f"--between={args.between}", f"--inside={args.inside}"]
    options += [f"--workers={args.workers}"]
    for name in ("state-dir", "keys-file", "allowed-hosts"):
        value = getattr(args, name.replace("-", "_"))
        options += [f"--{name}={value}"] if value else []
    advised = [s for s in config.cluster.services if s.mode is not Mode.ACT]
    names = dict.fromkeys(name for s in advised for name in (s.model, s.architecture.name))
    options += [f"--advised={','.join(names)}"] if names else []
    options += declared_options(config.cluster)
    options += media_options(engine.args for engine in config.engines.values())
    become(
        "executors.gateway", "--broker", broker, "--host", args.host,
        "--port", str(args.port), "--gateway-id", args.id, "--prefix", args.prefix,
        "--time-base", real_time().format(), *log_options_argv(args), *options,
    )  # fmt: skip


def become(module: str, *options: str) -> NoReturn:
    """Replace this process by `module`."""
    sys.stdout.flush()
    argv = [sys.executable, "-m", "streams.cli.start_part", module, *options]
    os.execv(sys.executable, argv)  # noqa: S606  an argv list


def add_parser(subparsers: Any) -> None:
    """Add the commands to the command line."""
    controller = subparsers.add_parser("controller", help="the control plane")
    add_common(controller)
    add_operator_options(controller, record=str(default_folder()), http=HTTP)
    add_demand_option(controller)
    controller.set_defaults(run=run_controller)
    windows = subparsers.add_parser("windows", help="a worker that merges telemetry")
    add_common(windows)
    windows.set_defaults(run=run_windows)
    gateway = subparsers.add_parser("gateway", help="the OpenAI-compatible front")
    add_common(gateway)
    gateway.add_argument("--host", default="127.0.0.1", help="address to listen on")
    gateway.add_argument("--port", type=int, default=8700, help="port to listen on")
    gateway.add_argument("--state-dir", help="folder for its last routes")
    gateway.add_argument(
        "--workers",
        type=int,
        default=1,
        help="processes on one port; the metrics of each are on port + 1 to port + N of loopback",
    )
    gateway.add_argument("--keys-file", help="API keys (YAML), read again when it changes")
    gateway.add_argument(
        "--allowed-hosts",
        metavar="NAMES",
        help="host names, by commas, that it answers to besides addresses and localhost",
    )
    for name, (default, what) in _GATEWAY_SECONDS.items():
        gateway.add_argument(
            f"--{name}", type=float, default=default, metavar="S", help=f"{what} ({default:g})"
        )
    gateway.add_argument(
        "--between",
        default=AcrossCombos.GOODPUT.value,
        choices=[one.value for one in AcrossCombos],
        help=f"how combos share the requests of a model ({AcrossCombos.GOODPUT.value})",
    )
    gateway.add_argument(
        "--inside",
        default=WithinCombo.OPPORTUNISTIC.value,
        choices=[one.value for one in WithinCombo],
        help=f"which instance of a combo takes a request ({WithinCombo.OPPORTUNISTIC.value})",
    )
    gateway.set_defaults(run=run_gateway)
