"""Read `kubernetes:` of a pool: its nodes in a cluster, and the way in which Shoal changes
workloads there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from autoscaler.domain.cluster import Market, Pool
from autoscaler.domain.validation import InvalidValue
from streams.files import units
from streams.files.keys import Group, Key, Named
from streams.files.units import Parser
from streams.files.yaml_tree import Section

MODES = ("observe", "scale", "pods")
_LABEL = re.compile(
    r"(?:[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?\Z", re.A
)
_VALUE = re.compile(r"(?:[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?)?\Z", re.A)


def _resource(value: object) -> str:
    text = units.text(value)
    if not _LABEL.match(text):
        raise InvalidValue("", value, "the name of a Kubernetes resource, such as nvidia.com/gpu")
    return text


def _label_value(value: object) -> str:
    if not isinstance(value, str) or not _VALUE.match(value):
        raise InvalidValue("", value, 'the value of a Kubernetes label (quote "true" and numbers)')
    return value


LABEL_VALUE = Parser(_label_value, "text", {"type": "string"})
MODE = Key(
    "mode",
    units.word(*MODES),
    "`observe` writes nothing, `scale` sets replicas of workloads, `pods` makes the engines' pods.",
    "observe",
)
NODE_WAIT = Key(
    "node_wait",
    units.duration_up_to("12h"),
    "How long a pod waits for a node that an autoscaler adds.",
    otherwise="no autoscaler adds nodes",
)
GPU_RESOURCE = Key(
    "gpu_resource",
    Parser(_resource, "text", {"type": "string"}),
    "Name of the GPUs as a resource.",
    "nvidia.com/gpu",
)
QUEUE = Key("queue", LABEL_VALUE, "Kueue's queue of the pods.", otherwise="none")
KUBERNETES = Group(
    "The pool on Kubernetes.",
    (MODE, NODE_WAIT, GPU_RESOURCE, QUEUE),
    {
        "nodes": Named("Labels of the pool's nodes.", LABEL_VALUE),
        "spot_nodes": Named("Further labels of its spot nodes.", LABEL_VALUE),
        "on_demand_nodes": Named("Further labels of its on-demand nodes.", LABEL_VALUE),
    },
    ("nodes",),
)


@dataclass(frozen=True, slots=True)
class KubernetesPool:
    """One pool on Kubernetes. nodes: labels of its nodes. gpu_resource: resource name of its GPUs.

    node_wait_s: time in which an autoscaler may add a node for a pod; 0 = there is no autoscaler.
    queue: queue of Kueue; "" = none.
    """

    mode: str
    nodes: Mapping[str, str]
    gpu_resource: str = "nvidia.com/gpu"
    node_wait_s: float = 0.0
    queue: str = ""


def read_kubernetes(pool: Section, made: list[Pool]) -> dict[str, KubernetesPool]:
    """The settings by pool id.

    pool: a section of `regions`. made: the pools of that section. {} if the key is missing.
    """
    section = pool.section("kubernetes")
    if section is None:
        return {}
    nodes = _labels(section, "nodes")
    by_market = {
        Market.SPOT: _labels(section, "spot_nodes"),
        Market.ON_DEMAND: _labels(section, "on_demand_nodes"),
    }
    mode, resource = MODE.take(section), GPU_RESOURCE.take(section)
    wait_s, queue = NODE_WAIT.take_or(section, 0.0), QUEUE.take_or(section, "")
    KUBERNETES.finish(section)
    if not nodes:
        raise section.error("nodes", "at least one label of the pool's nodes is needed")
    return {
        one.id: KubernetesPool(
            mode, {**nodes, **by_market.get(one.market, {})}, resource, wait_s, queue
        )
        for one in made
    }


def _labels(section: Section, key: str) -> dict[str, str]:
    part = section.section(key)
    if part is None:
        return {}
    for name in part:
        if not _LABEL.match(name):
            raise part.error(name, "is not the name of a Kubernetes label")
    return {name: part.take(name, LABEL_VALUE) for name in part}
