"""An upgrade of chart and image replaces all pods of Shoal while clients stream through it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.chart.helm_tools import NoTools
from tests.kubernetes.chart_cluster import IN_A_POD, ChartCluster
from tests.kubernetes.conftest import Start
from tests.kubernetes.executor_bench import TEMPLATE
from tests.kubernetes.plane.raw_api import serves
from tests.kubernetes.stream_load import StreamLoad

INSTANCES, STREAMS = 3, 1000
RESTRICTED = "pod-security.kubernetes.io/enforce=restricted"
CONFIG = """
mode: act
regions:
  us: {l4: {gpu: L4, per_node: 1, owned: true, nodes: 6,
            kubernetes: {mode: pods, nodes: {pool: l4}}}}
models:
  m:
    source: Qwen/Qwen3-8B
    slo: {ttft: 2s, tpot: 100ms}
    workload: {input: 200, output: 60}
    max_len: 4096
    disaggregate: false
    min: 3
"""


@pytest.fixture(autouse=True)
def empty() -> None:
    """The cluster of this test ends with it."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ChartCluster]:
    try:
        made = ChartCluster(tmp_path)
    except NoTools as error:
        pytest.skip(f"skipped: {error}")
    try:
        made.start([f"n{n}" for n in range(6)], ("pool=l4",))
        made.run("kubectl create namespace serving")
        made.run("kubectl create namespace shoal")
        made.run(f"kubectl label namespace shoal {RESTRICTED}")
        yield made
    finally:
        made.end()


@pytest.mark.timeout(900)
@pytest.mark.skipif(IN_A_POD, reason="the executor would use the cluster of this machine's pod")
@pytest.mark.parametrize("kafka", [False, True], ids=["single", "kafka"])
async def test_an_upgrade_of_chart_and_image_breaks_no_stream(
    cluster: ChartCluster, start: Start, kafka: bool
) -> None:
    """With Kafka, each part has pods of its own, and the embedded broker takes Kafka's place. The
    namespace admits restricted pods only, and the platform chooses their user, as on OpenShift."""
    values = {
        "image": {"repository": "REGISTRY/shoal", "tag": "one"},
        "pod": {"user": None},
        "engines": {"namespace": "serving"},
        "config": {"text": CONFIG},
        "executor": {
            "mode": "pods", "podTemplates": {"pod.yaml": TEMPLATE.replace(
                "image: engine", "image: vllm/vllm-openai:v0.12.0")},
        },
    }  # fmt: skip
    if kafka:
        broker = start("streams.broker")
        assert broker.stdout is not None
        values["controller"] = {"demand": "telemetry"}  # window workers need a real Kafka
        values["kafka"] = {"bootstrap": json.loads(broker.stdout.readline())["bootstrap"]}
    (cluster.folder / "values.yaml").write_text(yaml.safe_dump(values))
    chart = "shoal deploy/helm/shoal --namespace shoal --values values.yaml"

    async def until(condition: Callable[[], object]) -> None:
        await asyncio.to_thread(cluster.until, condition)

    def uids(namespace: str) -> set[str]:
        return {pod["metadata"]["uid"] for pod in cluster.get(f"pods -n {namespace}")["items"]}

    def settled(tag: str) -> bool:
        """Whether all pods of Shoal have the image and are ready."""
        pods = cluster.get("pods -n shoal")["items"]
        images = [pod["spec"]["containers"][0]["image"] for pod in pods]
        return all(map(serves, pods)) and all(image.endswith(f":{tag}") for image in images)

    load = StreamLoad(lambda: [f"{host}:8700" for host in cluster.endpoints("shoal-gateway")], "m")
    await asyncio.to_thread(cluster.run, f"helm install {chart}")
    await until(lambda: len(cluster.own_pods()) == INSTANCES and settled("one"))
    await until(lambda: len(cluster.endpoints("shoal-gateway")) == 2)
    former, before = uids("shoal"), uids("serving")
    async with load.sending(per_s=10):
        await asyncio.sleep(3)
        await asyncio.to_thread(cluster.run, f"helm upgrade {chart} --set image.tag=two")
        await until(lambda: settled("two"))
        while sum(load.counts.values()) < STREAMS:
            await asyncio.sleep(0.5)
    print("chart upgrade", "kafka" if kafka else "single", dict(load.counts), len(former))
    assert not former & uids("shoal")
    assert uids("serving") == before
    assert set(load.counts) == {"ok"}, cluster.logs()
