"""`shoal executor`: the agent of one GPU node, or of a region's virtual nodes for trials.

This module finds the node (declared or detected) and the state folder of the executor. The process
then becomes the executor, a program of the serving plane.
"""

from __future__ import annotations

import argparse
import os
import shlex
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from autoscaler.domain.node_names import node_ids
from streams.cli.run_kubernetes_executor import add_options, run_on_kubernetes
from streams.cli.run_part import add_common, become, reachable
from streams.clock import real_time
from streams.files.shoal_yaml import Config, load_config
from streams.files.user_errors import UserError
from streams.tools.up import process_list
from topics.checks import InvalidValue, name
from topics.edge.logs import log_options_argv
from topics.storage.durable_files import replace_file
from topics.storage.private_files import private_folder

_LOOPBACK = "127.0.0.1"


def add_parser(subparsers: Any) -> None:
    """Add `executor` to the command line."""
    executor = subparsers.add_parser("executor", help="the agent on a GPU node")
    add_common(executor)
    who = executor.add_mutually_exclusive_group()
    named = "the node it runs on, REGION.POOL.MARKET.NUMBER (default: this host's name)"
    who.add_argument("--node", help=named)
    who.add_argument("--region", help="virtual nodes instead: all of a region, on this machine")
    who.add_argument(
        "--kubernetes", action="store_true", help="pools on Kubernetes: engines as pods"
    )
    reached = "where gateways reach its engines (default: this host's address towards the broker)"
    for option, kind, what in (
        ("--advertise", "HOST", reached),
        ("--bind", "HOST", "address that engines listen on (default: the advertised one)"),
        ("--state-dir", "DIR", "folder of its state (default: below ~/.local/state/shoal)"),
    ):
        executor.add_argument(option, metavar=kind, help=what)
    executor.add_argument(
        "--reclaim-command", default="", metavar="COMMAND",
        help="polled every 5 s for a notice that the node will be reclaimed "
            "(docs/how-to/executors.md)",
    )  # fmt: skip
    executor.add_argument(
        "--containers", choices=("docker", "podman"), default="",
        help="start engines that declare an image in containers of it",
    )  # fmt: skip
    kinds = ("vllm", "simulated")
    started = "engines to start (default: vllm; for virtual nodes simulated)"
    executor.add_argument("--engine", choices=kinds, help=started)
    executor.add_argument("--vllm", default="vllm", metavar="PATH", help="the vllm to start")
    executor.add_argument(
        "--weights", action="append", default=[], metavar="MODEL=WEIGHTS",
        help="folder or repository that a model is loaded from (default: its weights, else its "
        "source)",
    )  # fmt: skip
    executor.add_argument(
        "--metrics-port", type=int, default=0, help="port of its own /metrics on loopback (0: any)"
    )
    executor.add_argument(
        "--engine-env",
        action="append",
        default=[],
        metavar="NAME",
        help="a variable that engines get beyond the usual ones, e.g. HF_TOKEN",
    )
    add_options(executor)
    executor.set_defaults(run=run_executor)


def run_executor(args: argparse.Namespace) -> int:
    """Replace this process by the executor."""
    config = load_config(args.config)
    if args.kubernetes:
        broker = reachable(args, config, "the pods of the cluster")
        run_on_kubernetes(args, config, broker, args.advertise or found_address(broker), _real)
    region, nodes = _nodes(args, config)
    folder = Path(args.state_dir) if args.state_dir else default_state(nodes[0], args.region)
    remembers = f"the engines in {folder}" if any(folder.glob("*-*.json")) else ""
    broker = reachable(args, config, remembers)
    advertise = args.advertise or (_LOOPBACK if args.region else found_address(broker))
    for option, value in (("--advertise", advertise), ("--bind", args.bind or advertise)):
        try:
            name(option, value)
        except InvalidValue as error:
            raise UserError(str(error)) from None
    run = process_list.Run(config, Path(args.config), folder, real_time(), 0, 0, args.prefix)
    told = process_list.node_file(run, region, args.id, broker, nodes)
    if (args.engine or ("simulated" if args.region else "vllm")) == "vllm":
        told = {**told, **_real(args, config, told)}
    file = {
        **told,
        "state_dir": str(folder),
        "advertise": advertise,
        "bind": args.bind or advertise,
        "metrics_port": args.metrics_port,
        "engine_env": args.engine_env,
        "reclaim_command": shlex.split(args.reclaim_command),
        "containers": args.containers,
    }
    path = folder / "executor.json"
    try:
        private_folder(folder)
        replace_file(path, orjson.dumps(file))
    except OSError as error:
        if not remembers or not path.exists():
            raise UserError(
                f"state folder {folder}: {error.strerror}; name another one with --state-dir"
            ) from None
    become("executors.node", "--config", str(path), *log_options_argv(args))


def _real(
    args: argparse.Namespace, config: Config, told: Mapping[str, Any]
) -> Mapping[str, object]:
    """The models with their weights, and a vLLM configuration for every engine of the file. told:
    the executor's node file for simulated engines. UserError: invalid --weights."""
    weights = {}
    for item in args.weights:
        model, _, found = item.partition("=")
        if model not in told["models"] or not found:
            known = ", ".join(told["models"])
            raise UserError(f"--weights {item}: MODEL=WEIGHTS, with MODEL one of {known}")
        weights[model] = found
    models = {
        m: {**about, "weights": weights.get(m, about["weights"])}
        for m, about in told["models"].items()
    }
    named = {about["weights"] or about["source"] for about in models.values()}
    adapters = {one["weights"] for about in models.values() for one in about["adapters"]}
    allowed = sorted(named | adapters)
    engines = {
        engine.name: {
            "kind": "vllm",
            "executable": args.vllm,
            "weights": allowed,
            "image": engine.image,
            "args": list(engine.args),
            "sleep": engine.sleep,
            "quantization": engine.quantization or None,
            "max_num_seqs": engine.max_num_seqs,
            "kv_transfer": {},
            "pipelines": engine.pipelines,
        }
        for engine in config.engines.values()
    }
    return {"models": models, "engines": engines}


def default_state(node: str, region: str | None) -> Path:
    """The default state folder for the executor of a node. Each node has its own."""
    given = os.environ.get("STATE_DIRECTORY", "")  # systemd sets this variable.
    if given:
        return Path(given.split(":")[0])
    base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return base / "shoal" / "executor" / (region or node)


def found_address(broker: str) -> str:
    """This host's address on the route to the broker; loopback if the broker is on this host."""
    host, _, port = broker.split(",")[0].rpartition(":")
    try:
        family, *_, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # This sends no packet; it only selects the route.
            return str(probe.getsockname()[0])
    except OSError as error:
        raise UserError(f"--advertise is needed: no way to {host} ({error.strerror})") from None


def _nodes(args: argparse.Namespace, config: Config) -> tuple[str, tuple[str, ...]]:
    """The region and the nodes of this executor. UserError: the file does not declare them."""
    pools = config.cluster.pools
    if args.region:
        regions = sorted({pool.region for pool in pools})
        if args.region not in regions:
            known = ", ".join(regions)
            raise UserError(f"--region {args.region}: not in {args.config}; one of {known}")
        own = [pool for pool in pools if pool.region == args.region]
        return args.region, tuple(node for pool in own for node in node_ids(pool))
    node = args.node or os.environ.get("SHOAL_NODE_NAME") or socket.gethostname()
    for pool in pools:
        if node in node_ids(pool):
            return pool.region, (node,)
    names = ", ".join(ids[0] for pool in pools if (ids := node_ids(pool)))
    raise UserError(
        f"--node {node}: not a node of {args.config}; names are REGION.POOL.MARKET.NUMBER below "
        f"the pool's maximum, such as {names}"
    )
