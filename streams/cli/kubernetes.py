"""`shoal kubernetes`: the nodes, workloads and free capacity of a cluster. Only `release` writes.

The process becomes a program of the serving plane. Only programs of that plane talk to the API
server.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from typing import Any

import orjson

from streams.cli.run_part import become
from streams.files.shoal_yaml import load_config
from streams.files.user_errors import UserError

_REPORTS = {
    "pools": "print the section `regions:` for the GPU nodes of the cluster",
    "serving": "print the pods that serve, by model, role and pool",
    "availability": "print free nodes by pool, as `shoal feed availability` reads them",
    "prices": "print prices by pool, as `shoal feed prices` reads them",
    "release": "remove Shoal's labels from pods that it did not make, after its executor ended",
}
_WITHOUT_POOLS = ("pools", "release")

_MODULE = "executors.kubernetes.cluster_report"
_TIMEOUT_S = 60.0


def add_parser(subparsers: Any) -> None:
    """Add `kubernetes` to the command line."""
    parser = subparsers.add_parser(
        "kubernetes",
        help="show the GPU nodes, servers and prices of a cluster",
        description="Reads nodes and pods; only `release` writes. "
        + "; ".join(f"{name}: {what}" for name, what in _REPORTS.items())
        + ".",
    )
    parser.add_argument("report", choices=tuple(_REPORTS))
    parser.add_argument("--config", metavar="FILE", help="the shoal.yaml (not for pools, release)")
    parser.add_argument("--kubeconfig", default="", metavar="FILE", help="default: as kubectl")
    parser.add_argument("--context", default="", metavar="NAME", help="default: the current one")
    parser.add_argument("--namespace", default="", metavar="NAME", help="namespace of the engines")
    parser.add_argument(
        "--scale-kind", action="append", default=[], metavar="GROUP/VERSION/KIND/PLURAL",
        help="with serving: a further kind of workload with /scale",
    )  # fmt: skip
    parser.add_argument(
        "--serve", default="", metavar="HOST:PORT",
        help="answer /availability and /prices there, for `shoal feed --follow`, and /serving, for "
        "`serving_pods` of a shoal.yaml",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Replace this process by the report."""
    pools: dict[str, Any] = {}
    if args.report not in _WITHOUT_POOLS or args.serve:
        if not args.config:
            raise UserError(f"shoal kubernetes {args.report}: --config FILE is needed")
        config = load_config(args.config)
        per_node = {pool.id: pool.per_node for pool in config.cluster.pools}
        pools = {
            pool: {
                "mode": one.mode,
                "nodes": dict(one.nodes),
                "gpu_resource": one.gpu_resource,
                "node_wait_s": one.node_wait_s,
                "per_node": per_node[pool],
            }
            for pool, one in config.kubernetes.items()
        }
        if not pools:
            raise UserError(f"{args.config}: no pool has `kubernetes:`")
    become(
        _MODULE, args.report, "--pools", orjson.dumps(pools).decode(),
        "--kubeconfig", args.kubeconfig, "--context", args.context, "--namespace", args.namespace,
        "--serve", args.serve, *(f"--scale-kind={kind}" for kind in args.scale_kind),
    )  # fmt: skip


def regions_of_cluster(kubeconfig: str, context: str) -> str:
    """The section `regions:` for the GPU nodes of a cluster, as `shoal kubernetes pools` prints it.
    UserError: the cluster cannot be read, or has no GPU nodes."""
    argv = [
        sys.executable,
        "-m",
        _MODULE,
        "pools",
        "--kubeconfig",
        kubeconfig,
        "--context",
        context,
    ]
    try:
        made = subprocess.run(argv, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise UserError(f"--from-cluster: no answer within {_TIMEOUT_S:g} s") from None
    if made.returncode:
        said = made.stderr.strip().splitlines()[-1:] or [f"exit code {made.returncode}"]
        raise UserError(f"--from-cluster: {said[0].removeprefix('shoal: ')}")
    _, _, rest = made.stdout.partition("\n")
    if not rest.startswith("  "):
        why = rest.strip().removeprefix("# ") or "no node of the cluster has GPUs"
        raise UserError(f"--from-cluster: {why}")
    return made.stdout
