"""Large estates for benchmarks: models, pools, and the records of their nodes and gateways.

Every assignment is applied at once. Large estates consist of copies of the models of a small one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autoscaler.domain.cluster import Cluster, Market, Mode, Policy, Pool, Service
from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.node_names import node_ids
from autoscaler.domain.workload import Lengths, Slo
from autoscaler.estimate.windows import TelemetryWindows
from autoscaler.performance import catalog
from topics.fleet import Assignment, DesiredInstance, InstanceState, ObservedInstance, Status
from topics.telemetry import Telemetry

SOURCES = ("meta-llama/Llama-3.1-8B", "Qwen/Qwen3-32B", "openai/gpt-oss-20b")
PER_NODE = 4
_NODE_USD_PER_H = {"L40S": 7.2, "A100-SXM-80GB": 9.6, "H100-SXM": 14.0, "L4": 3.4}
_PRICED_AT = {Market.ON_DEMAND: 1.0, Market.SPOT: 0.4}
POOLS_PER_REGION = len(_NODE_USD_PER_H) * len(_PRICED_AT)
_HEARTBEAT_S = 2


class Estate:
    """`models` models, each allowed in one of `regions`, and `nodes` nodes in eight pools per
    region.

    load: factor on every model's rate, which is 2 to 6 req/s. kinds: number of distinct models; the
    others are copies.
    """

    def __init__(self, models: int, nodes: int, regions: int, load: float, kinds: int) -> None:
        each = nodes // (regions * POOLS_PER_REGION)
        pools = [
            Pool(f"r{r}", gpu.lower(), catalog.gpu(gpu), PER_NODE, each, market, usd * share)
            for r in range(regions)
            for gpu, usd in _NODE_USD_PER_H.items()
            for market, share in _PRICED_AT.items()
        ]
        services = [
            Service(
                model=f"m{number}",
                architecture=_architecture(k),
                slo=Slo(2000.0, 80.0),
                mode=Mode.ACT,
                min_instances=1,
                spot_share=0.5,
                max_len_tokens=16_384,
                regions=(f"r{k % regions}",),
                lengths=Lengths.expected(1000.0 + 10.0 * (k % 7), 200.0),
                req_per_s=load * (2.0 + k % 5),
            )
            for number in range(models)
            for k in [number % kinds]
        ]
        self.services = tuple(services)
        self.kinds = kinds
        self.cluster = Cluster(tuple(pools), (), Policy())
        self.nodes = {node: pool.id for pool in pools for node in node_ids(pool)}
        self.windows = TelemetryWindows()
        self.assignments: dict[str, Assignment] = {}
        self.sequence = 0
        self._said: dict[str, Status] = {}

    def declare(self, models: int) -> None:
        """Declare the first `models` models."""
        self.cluster = replace(self.cluster, services=self.services[:models])

    def report(self, now_ms: int, rates: dict[str, float], random: np.random.Generator) -> None:
        """Report one second of telemetry of every model."""
        self.sequence += 1
        for service in self.cluster.services:
            n = int(random.poisson(rates[service.model]))
            self.windows.add(
                Telemetry(
                    model=service.model, gateway="g", boot="b", sequence=self.sequence,
                    end_ms=now_ms, span_ms=1000, age_ms=0, arrivals=n, completions=n, failures=0,
                    refused=0, attained=n, input_tokens_arrived=1000 * n, input_tokens=1000 * n,
                    output_tokens=200 * n, in_flight=n, route_generation=10**6,
                ),
                now_ms,
            )  # fmt: skip

    def statuses(self, now_ms: int) -> dict[str, Status]:
        """The last status of every declared node, with every assigned instance ready.

        A node reports every two seconds, and at once after a change.
        """
        turn = now_ms // 1000 % _HEARTBEAT_S
        for number, (node, pool) in enumerate(self.nodes.items()):
            wanted = self.assignments.get(node)
            generation = wanted.generation if wanted else 0
            said = self._said.get(node)
            if said is None or said.observed_generation != generation:
                self._said[node] = _carried_out(node, pool, wanted, now_ms)
            elif number % _HEARTBEAT_S == turn:
                self._said[node] = replace(said, at_ms=now_ms)
        return dict(self._said)

    def copied(self, block: Estate) -> None:
        """Repeat the assignments of `block` on other nodes for every copy of its models."""
        used: dict[str, int] = {}
        for node, wanted in block.assignments.items():
            if wanted.instances:
                used[wanted.pool] = max(used.get(wanted.pool, 0), _index(node)[1] + 1)
        for copy in range(len(self.services) // self.kinds):
            for node, wanted in block.assignments.items():
                stem, index = _index(node)
                name = f"{stem}.{index + copy * used.get(wanted.pool, 0)}"
                instances = tuple(_renamed(i, copy * self.kinds) for i in wanted.instances)
                self.assignments[name] = replace(wanted, node=name, instances=instances)


def _carried_out(node: str, pool: str, wanted: Assignment | None, now_ms: int) -> Status:
    ready = tuple(
        ObservedInstance(i.instance, i.model, i.phase, i.group, InstanceState.READY, i.gpus,
                         "127.0.0.1:9000", now_ms, now_ms)
        for i in (wanted.instances if wanted else ())
        if not i.drain
    )  # fmt: skip
    return Status(node, pool, "x", wanted.generation if wanted else 0, now_ms, ready)


def _renamed(instance: DesiredInstance, further: int) -> DesiredInstance:
    old = instance.model
    new = f"m{int(old[1:]) + further}"
    return replace(
        instance, model=new,
        instance=new + instance.instance.removeprefix(old),
        group=new + instance.group.removeprefix(old),
    )  # fmt: skip


def _index(node: str) -> tuple[str, int]:
    stem, _, index = node.rpartition(".")
    return stem, int(index)


def _architecture(k: int) -> ModelSpec:
    source = SOURCES[k % len(SOURCES)]
    found = catalog.model(source)
    return found if source == SOURCES[2] else catalog.quantized(found, "fp8")
