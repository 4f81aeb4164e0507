"""`shoal executor --kubernetes`: the executor of all pools that declare `kubernetes:`.

This module turns a `shoal.yaml` into the executor's configuration. The process then becomes the
executor, a program of the serving plane.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import orjson

from autoscaler.domain.node_names import node_ids
from streams.cli.run_part import become
from streams.clock import real_time
from streams.files.shoal_yaml import Config
from streams.files.user_errors import UserError
from streams.tools.up import process_list
from topics.edge.logs import log_options_argv
from topics.storage.durable_files import replace_file
from topics.storage.private_files import private_folder

TEMPLATES = "/etc/shoal/templates"


def add_options(executor: Any) -> None:
    """Add the options of an executor on Kubernetes."""
    group = executor.add_argument_group("on Kubernetes (docs/how-to/kubernetes.md)")
    for option, kind, default, what in (
        ("--pools", "NAMES", "", "only these pools, by commas (default: all with `kubernetes:`)"),
        ("--kubeconfig", "FILE", "", "default: the pod's service account, else KUBECONFIG"),
        ("--context", "NAME", "", "of the kubeconfig (default: the current one)"),
        ("--namespace", "NAME", "", "of the engines (default: of the service account)"),
        ("--pod-templates", "DIR", TEMPLATES, f"pod templates (default {TEMPLATES})"),
        ("--engine-key-secret", "SECRET/KEY", "", "Secret with the engines' API key"),
        ("--lease", "NAME/HOLDER", "", "of several executors of one --id, only the holder acts"),
        ("--models-from", "URL", "", "of the controller: keep a ShoalModel object for each model"),
        ("--metrics-host", "HOST", "127.0.0.1", "address of its /metrics (default 127.0.0.1)"),
    ):
        group.add_argument(option, metavar=kind, default=default, help=what)
    group.add_argument(
        "--route-lag", type=float, default=0.0, metavar="SECONDS",
        help="until an endpoint picker has seen a pod's label (default 0: Shoal's gateways)",
    )  # fmt: skip
    group.add_argument(
        "--no-nodes", action="store_true", help="read no nodes: a Role without cluster-wide rights"
    )
    group.add_argument(
        "--standby-reports", action="store_true",
        help="report pods before this executor holds the Lease; for `shoal single` only",
    )  # fmt: skip
    group.add_argument(
        "--scale-kind", action="append", default=[], metavar="GROUP/VERSION/KIND/PLURAL",
        help="a further kind of workload with /scale",
    )  # fmt: skip


def run_on_kubernetes(
    args: argparse.Namespace, config: Config, broker: str, advertise: str, real: Callable[..., Any]
) -> NoReturn:
    """Replace this process by the executor. real: the sections `models` and `engines` for vLLM."""
    pools = _pools(args, config)
    regions = sorted({pool.partition("/")[0] for pool in pools})
    # The configuration contains no state, because the executor's state is in the cluster.
    folder = Path(args.state_dir or tempfile.mkdtemp(prefix="shoal-executor-"))
    run = process_list.Run(config, Path(args.config), folder, real_time(), 0, 0, args.prefix)
    slots = {node for pool in config.cluster.pools if pool.id in pools for node in node_ids(pool)}
    files = [process_list.node_file(run, region, args.id, broker, slots) for region in regions]
    nodes: list[Any] = [node for file in files for node in list(_list(file["nodes"]))]
    file: dict[str, Any] = {**files[0], "nodes": nodes, "region": "+".join(regions)}
    if (args.engine or "vllm") == "vllm":
        file |= real(args, config, file)
    file |= {
        "state_dir": str(folder),
        "advertise": advertise,
        "bind": args.bind or advertise,
        "metrics_port": args.metrics_port,
    }
    kubernetes = {
        "pools": pools,
        "kubeconfig": args.kubeconfig,
        "context": args.context,
        "namespace": args.namespace,
        "templates": args.pod_templates,
        "key_secret": args.engine_key_secret,
        "route_lag_s": args.route_lag,
        "read_nodes": not args.no_nodes,
        "scale_kinds": args.scale_kind,
        "metrics_host": args.metrics_host,
        "lease": args.lease,
        "standby_reports": args.standby_reports,
        "models_from": args.models_from,
    }
    path = folder / "executor.json"
    try:
        private_folder(folder)
        replace_file(path, orjson.dumps({"executor": file, "kubernetes": kubernetes}))
    except OSError as error:
        raise UserError(f"folder {folder}: {error.strerror}; name one with --state-dir") from None
    become("executors.kubernetes", "--config", str(path), *log_options_argv(args))


def _pools(args: argparse.Namespace, config: Config) -> dict[str, Mapping[str, Any]]:
    """The pools of this executor, with their settings.

    Pools in mode observe are left out, because an executor writes nothing there.
    """
    wanted = [name.strip() for name in args.pools.split(",") if name.strip()]
    for name in wanted:
        if name not in config.kubernetes:
            known = ", ".join(sorted(config.kubernetes)) or "none"
            raise UserError(f"--pools {name}: not a pool with `kubernetes:`; those are: {known}")
    found: dict[str, Mapping[str, Any]] = {
        pool: {
            "mode": one.mode,
            "nodes": dict(one.nodes),
            "gpu_resource": one.gpu_resource,
            "node_wait_s": one.node_wait_s,
            "queue": one.queue,
        }
        for pool, one in config.kubernetes.items()
        if one.mode != "observe" and (not wanted or pool in wanted)
    }
    if not found:
        raise UserError(
            f"{args.config}: no pool has `kubernetes:` with mode scale or pods, so an executor has "
            "nothing to do (docs/how-to/kubernetes.md)"
        )
    return found


def _list(value: object) -> list[Any]:
    assert isinstance(value, list)  # noqa: S101  made by node_file
    return value
