"""The configuration of an executor on Kubernetes: the common configuration of executors, and its
pools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import orjson

from executors.kubernetes.kube_kinds import SCALABLE, Kind, parse_kind
from executors.node.executor_config import ExecutorConfig, parse_config
from topics.checks import InvalidValue, flag, name, number, object_fields, one_of, text


class PoolMode(StrEnum):
    """Shoal's permission on a pool. observe: no writes. scale: set the replicas of workloads that
    have another owner. pods: create the pods of engines."""

    OBSERVE = "observe"
    SCALE = "scale"
    PODS = "pods"


@dataclass(frozen=True, slots=True)
class KubePool:
    """One pool. nodes: labels of its nodes. gpu_resource: name of its GPUs as a resource.

    node_wait_s: time for which a pod waits for a new node; 0 = no autoscaler adds nodes. queue:
    Kueue's queue for its pods, "" = none.
    """

    mode: PoolMode
    nodes: Mapping[str, str]
    gpu_resource: str = "nvidia.com/gpu"
    node_wait_s: float = 0.0
    queue: str = ""


@dataclass(frozen=True, slots=True)
class KubernetesConfig:
    """Configuration of the Kubernetes executor. executor: see `ExecutorConfig`; its nodes are the
    slots. pools: by pool id.

    kubeconfig, context: see `client_config`. namespace: "" = as found. templates: folder with the
    pod templates. key_secret: name and key of the Secret with the engines' API key.
    route_lag_s: time until routers that select pods by label apply a change. read_nodes: whether
    this process may read nodes. scale_kinds: further kinds with `/scale`. metrics_host: address of
    /metrics. lease: name of a Lease and of this holder; ("", "") = this executor is the only one.
    standby_reports: whether the executor reports pods before it holds the Lease. Its controller
    must be its own: statuses of another executor would contradict. models_from: URL of the
    controller whose models get a ShoalModel object, "" = none.
    """

    executor: ExecutorConfig
    pools: Mapping[str, KubePool]
    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""
    templates: Path = Path("/etc/shoal/templates")
    key_secret: tuple[str, str] = ("", "")
    route_lag_s: float = 0.0
    read_nodes: bool = True
    scale_kinds: tuple[Kind, ...] = SCALABLE
    metrics_host: str = "127.0.0.1"
    lease: tuple[str, str] = ("", "")
    standby_reports: bool = False
    models_from: str = ""


def load_kubernetes_config(path: Path) -> KubernetesConfig:
    """Load the JSON file `path`. Raises InvalidValue, which names the offending field."""
    try:
        raw = orjson.loads(path.read_bytes())
    except OSError as error:
        raise InvalidValue("--config", str(path), f"a readable file ({error.strerror})") from None
    except orjson.JSONDecodeError as error:
        raise InvalidValue("--config", str(path), f"JSON ({error})") from None
    return parse_kubernetes_config(raw)


def parse_kubernetes_config(raw: Any) -> KubernetesConfig:
    """Parse the configuration from its JSON value. Unknown keys are refused."""
    top = object_fields("config", raw, ("executor", "kubernetes"), {})
    optional = {
        "kubeconfig": "", "context": "", "namespace": "", "templates": "/etc/shoal/templates",
        "key_secret": "", "route_lag_s": 0.0, "read_nodes": True, "scale_kinds": [],
        "metrics_host": "127.0.0.1", "lease": "", "standby_reports": False,
        "models_from": "",
    }  # fmt: skip
    own = object_fields("kubernetes", top["kubernetes"], ("pools",), optional)
    texts = ("kubeconfig", "context", "namespace", "templates", "key_secret", "lease",
             "models_from")  # fmt: skip
    for key in texts:
        text(f"kubernetes.{key}", own[key], 4000)
    if own["models_from"] and not own["models_from"].startswith(("http://", "https://")):
        raise InvalidValue("kubernetes.models_from", own["models_from"], "http://HOST:PORT")
    name("kubernetes.metrics_host", own["metrics_host"])
    number("kubernetes.route_lag_s", own["route_lag_s"], 0.0, 600.0)
    for key in ("read_nodes", "standby_reports"):
        flag(f"kubernetes.{key}", own[key])
    secret, _, key = own["key_secret"].partition("/")
    if bool(secret) != bool(key):
        raise InvalidValue("kubernetes.key_secret", own["key_secret"], "SECRET/KEY")
    lease, _, holder = own["lease"].partition("/")
    if bool(lease) != bool(holder):
        raise InvalidValue("kubernetes.lease", own["lease"], "NAME/HOLDER")
    if not isinstance(own["pools"], dict):
        raise InvalidValue("kubernetes.pools", own["pools"], "a JSON object")
    if not isinstance(own["scale_kinds"], list):
        raise InvalidValue("kubernetes.scale_kinds", own["scale_kinds"], "a JSON array")
    pools = {
        pool: parse_kube_pool(f"kubernetes.pools.{pool}", item)
        for pool, item in own["pools"].items()
    }
    config = KubernetesConfig(
        executor=parse_config(top["executor"]),
        pools=pools,
        kubeconfig=own["kubeconfig"],
        context=own["context"],
        namespace=own["namespace"],
        templates=Path(own["templates"]),
        key_secret=(secret, key),
        route_lag_s=float(own["route_lag_s"]),
        read_nodes=own["read_nodes"],
        scale_kinds=(*SCALABLE, *(parse_kind(str(item)) for item in own["scale_kinds"])),
        metrics_host=own["metrics_host"],
        lease=(lease, holder),
        standby_reports=own["standby_reports"],
        models_from=own["models_from"],
    )
    for node in config.executor.nodes:
        if node.pool not in pools:
            raise InvalidValue("nodes", node.node, f"nodes of the pools {', '.join(pools)}")
    return config


def parse_kube_pool(where: str, raw: Any) -> KubePool:
    """One pool. Raises InvalidValue, which names the offending field."""
    optional = {"gpu_resource": "nvidia.com/gpu", "node_wait_s": 0.0, "queue": ""}
    item = object_fields(where, raw, ("mode", "nodes"), optional)
    one_of(f"{where}.mode", item["mode"], tuple(PoolMode))
    nodes = item["nodes"]
    if not isinstance(nodes, dict) or not all(isinstance(value, str) for value in nodes.values()):
        raise InvalidValue(f"{where}.nodes", nodes, "labels of nodes")
    name(f"{where}.gpu_resource", item["gpu_resource"])
    number(f"{where}.node_wait_s", item["node_wait_s"], 0.0, 43_200.0)
    text(f"{where}.queue", item["queue"], 63)
    return KubePool(
        PoolMode(item["mode"]), nodes, item["gpu_resource"], float(item["node_wait_s"]),
        item["queue"],
    )  # fmt: skip
