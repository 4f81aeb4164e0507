"""ShoalModel objects on a real control plane, with its garbage collector."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from executors.kubernetes import model_objects, object_cache
from executors.kubernetes.controller_status import DecisionReport, ModelReport
from executors.kubernetes.kube_client import KubeClient
from executors.kubernetes.kube_names import object_name
from executors.kubernetes.model_objects import ModelObjects
from executors.kubernetes.pod_fleet import PodFleet
from streams.tools.up.host_resources import free_port
from tests.chart.helm_tools import CHART, NoTools, tools
from tests.kubernetes.conftest import Start
from tests.kubernetes.executor_bench import Bench, config_file, wish
from tests.kubernetes.plane.control_plane import ControlPlane
from tests.kubernetes.plane.raw_api import RawApi
from tests.kubernetes.real_control import RealControl

FILE = CHART / "files" / "shoalmodels.yaml"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CRD = f"{CRDS}/shoalmodels.shoal.dev"
MODELS = "/apis/shoal.dev/v1alpha1/namespaces/serving/shoalmodels"
PODS = "/api/v1/namespaces/serving/pods"
POOL = {"us/l4/owned": {"mode": "pods", "nodes": {"pool": "l4"}}}
SLOT = "us.l4.owned.0"
AT = datetime(2026, 11, 30, 19, 0, tzinfo=UTC)
REPORT = ModelReport(
    "m", "act", 2, 1, 4.25, 0.987, "at_risk", ("capacity_short",), "too little capacity",
    DecisionReport("scale_out", "demand_rises", "demand at most 9 req/s", AT),
)  # fmt: skip


class Reports:
    """A controller that reports `models`."""

    def __init__(self, *models: ModelReport) -> None:
        self.models = models

    async def read(self) -> dict[str, ModelReport]:
        return {one.model: one for one in self.models}


Holds = Callable[[Any], object]
"""A condition on an object, None = there is no such object."""


def present(found: Any) -> bool:
    return found is not None


def absent(found: Any) -> bool:
    return found is None


def reported(reason: str, kind: str = "Reported") -> Holds:
    return lambda found: condition(found, kind)["reason"] == reason


async def until(admin: RawApi, path: str, holds: Holds, limit_s: float = 60.0) -> Any:
    """The object at `path` once it `holds`."""
    found = None
    try:
        async with asyncio.timeout(limit_s):
            while not holds(found := await admin.get(path)):
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"{path} after {limit_s} s: {found}") from None
    return found


def owners_of(pod: Any) -> dict[str, Any]:
    """The owner references of a pod by kind."""
    return {one["kind"]: one for one in pod["metadata"]["ownerReferences"]}


def is_owned(pod: Any) -> bool:
    return "ShoalModel" in owners_of(pod)


def condition(found: Any, kind: str) -> Any:
    conditions = ((found or {}).get("status") or {}).get("conditions") or ()
    return next((one for one in conditions if one["type"] == kind), {"reason": ""})


async def install(admin: RawApi) -> None:
    """Install the file of the chart."""
    for manifest in yaml.safe_load_all(FILE.read_text()):
        kind = manifest["kind"]
        rights = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
        await admin.post(CRDS if kind == "CustomResourceDefinition" else rights, manifest)
    async with asyncio.timeout(30):
        while (await admin.call("GET", MODELS))[0] != 200:
            await asyncio.sleep(0.1)


async def remove(admin: RawApi) -> None:
    await admin.delete(CRD)
    await until(admin, CRD, absent)


@pytest.fixture(autouse=True)
async def definition(admin: RawApi, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    monkeypatch.setattr(model_objects, "EVERY_S", 0.2)
    await install(admin)
    yield
    await remove(admin)


@pytest.fixture
async def client(plane: ControlPlane, request: pytest.FixtureRequest) -> AsyncIterator[KubeClient]:
    """The client of the account of the test, by default that of mode `scale`."""
    made = KubeClient(str(plane.kubeconfig(getattr(request, "param", "shoal-scale"))))
    made.open()
    yield made
    await made.close()


@pytest.fixture
async def shown(client: KubeClient) -> AsyncIterator[Reports]:
    """Keeps the objects of the models that the fixture reports."""
    reports = Reports(REPORT)
    fleet = PodFleet(client, "", with_nodes=False)
    fleet.start()
    fleet.spawn(ModelObjects(fleet, reports, "ex", ()).run())
    yield reports
    await fleet.close()


async def test_kubectl_shows_the_status_and_its_cause(
    shown: Reports, admin: RawApi, plane: ControlPlane
) -> None:
    shown.models = (REPORT, replace(REPORT, model="meta-llama/Llama-3.1-8B", decision=None))
    await until(admin, f"{MODELS}/{object_name('meta-llama/Llama-3.1-8B')}", reported("Reported"))
    one = await until(admin, f"{MODELS}/m", reported("Reported"))
    # The server prunes what the schema does not know.
    assert one["status"]["lastDecision"] == {
        "kind": "ScaleOut", "cause": "DemandRises", "message": "demand at most 9 req/s",
        "time": "2026-11-30T19:00:00Z",
    }  # fmt: skip
    assert one["status"]["observedGeneration"] == one["metadata"]["generation"] == 1
    for kind in ("Reported", "Ready", "Healthy"):
        assert set(condition(one, kind)) == {
            "type", "status", "reason", "message", "lastTransitionTime", "observedGeneration",
        }  # fmt: skip
    events = "/api/v1/namespaces/serving/events"
    about = f"{events}?fieldSelector=involvedObject.uid%3D{one['metadata']['uid']}"
    event = (await until(admin, about, lambda found: found["items"]))["items"][0]
    assert (event["reason"], event["type"]) == ("ScaleOut", "Normal")
    try:
        kubectl = str(tools() / "kubectl")
    except NoTools as error:
        pytest.skip(f"skipped: {error}")
    argv = [kubectl, f"--kubeconfig={plane.kubeconfig()}", "-n", "serving", "get", "shoalmodels"]
    done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, check=True)
    head, row, _ = (line.split() for line in done.stdout.splitlines())
    assert head == ["NAME", "WANTED", "READY", "USD/H", "SLO", "HEALTH", "DECISION", "CAUSE",
                    "DECIDED"]  # fmt: skip
    assert row[:-1] == ["m", "2", "1", "4.25", "0.987", "CapacityShort", "ScaleOut", "DemandRises"]


async def test_objects_of_people_get_an_answer_and_models_keep_their_names(
    shown: Reports, admin: RawApi
) -> None:
    kind = {"apiVersion": "shoal.dev/v1alpha1", "kind": "ShoalModel"}
    for name, model in (("new", "new"), ("second", "m")):
        await admin.post(MODELS, {**kind, "metadata": {"name": name}, "spec": {"model": model}})
    await until(admin, f"{MODELS}/new", reported("NotDeclared"))
    await until(admin, f"{MODELS}/second", reported("OtherObject"))
    await until(admin, f"{MODELS}/m", reported("Reported"))
    code, found = await admin.call(
        "PATCH", f"{MODELS}/m", {"spec": {"model": "x"}}, "application/merge-patch+json"
    )
    assert code == 422 and "shoal.yaml declares models" in found["message"]
    for spec in ({}, {"model": ""}):
        bad = {**kind, "metadata": {"name": "bad"}, "spec": spec}
        assert (await admin.call("POST", MODELS, bad))[0] == 422
    # An edit of the status is undone, and a deleted object comes back.
    await admin.patch(f"{MODELS}/m/status", {"status": {"wanted": 99}})
    await until(admin, f"{MODELS}/m", lambda found: found["status"]["wanted"] == 2)
    uid = (await admin.get(f"{MODELS}/m"))["metadata"]["uid"]
    await admin.delete(f"{MODELS}/m")
    again = await until(admin, f"{MODELS}/m", reported("Reported"))
    assert again["metadata"]["uid"] != uid


async def test_the_object_of_a_withdrawn_model_leaves(
    shown: Reports, admin: RawApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    await until(admin, f"{MODELS}/m", present)
    monkeypatch.setattr(model_objects, "WITHDRAWN_S", 1.0)
    shown.models = ()
    await until(admin, f"{MODELS}/m", absent)


async def test_the_definition_may_leave_and_come_back_while_the_executor_runs(
    shown: Reports, admin: RawApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_cache, "_NO_KIND_PAUSE_S", 0.5)
    await until(admin, f"{MODELS}/m", present)
    await remove(admin)
    await install(admin)
    await until(admin, f"{MODELS}/m", reported("Reported"), 150.0)


@pytest.mark.parametrize("client", ["shoal-pods"], indirect=True)
async def test_pods_outlive_their_model_and_its_definition(
    client: KubeClient, admin: RawApi, kubelets: Any, tmp_path: Path
) -> None:
    """The garbage collector removes the reference, and deletes only the pod with no other
    owner."""
    kubelets("l4-0", third=95)
    async with Bench(config_file(tmp_path, POOL, slots=1), client) as bench:
        bench.assign(SLOT, wish("a", 0))
        await bench.until(lambda: bench.ready(SLOT, "a"))
        (pod,) = (await admin.get(PODS))["items"]
        path = f"{PODS}/{pod['metadata']['name']}"
        for policy in ("Background", "Foreground", "Orphan", "definition"):
            objects = ModelObjects(bench.slots.fleet, Reports(REPORT), "ex", {SLOT})
            keeps = asyncio.create_task(objects.run())
            owners = owners_of(await until(admin, path, is_owned))
            assert owners["Namespace"]["controller"]
            assert not owners["ShoalModel"].get("controller")
            keeps.cancel()
            await asyncio.gather(keeps, return_exceptions=True)
            alone = {"metadata": {"name": "alone", "ownerReferences": [owners["ShoalModel"]]},
                     "spec": {"containers": [{"name": "c", "image": "c"}],
                              "nodeSelector": {"pool": "none"}}}  # fmt: skip
            if policy != "Orphan":
                await admin.post(PODS, alone)
            if policy == "definition":
                await remove(admin)
            else:
                body = {"propagationPolicy": policy}
                code, _ = await admin.call("DELETE", f"{MODELS}/m", body)
                assert code == 200
            # The definition may be gone before the collector has looked at the pods. It then keeps
            # those whose owner it cannot look up.
            if policy != "definition":
                await until(admin, path, lambda found: not is_owned(found))
                await until(admin, f"{PODS}/alone", absent)
            left = await admin.get(path)
            assert left["metadata"]["uid"] == pod["metadata"]["uid"]
            assert "deletionTimestamp" not in left["metadata"]
        assert bench.ready(SLOT, "a")


CONFIG = """
mode: act
regions:
  us:
    l4: {gpu: L4, per_node: 1, max: 2, price: 0.5, kubernetes: {mode: pods, nodes: {pool: l4}}}
models:
  Chat_v1.5:
    source: Qwen/Qwen3-8B
    slo: {ttft: 2s, tpot: 100ms}
    workload: {input: 200, output: 60}
    max_len: 4096
    min: 1
"""


async def test_a_real_controller_and_executor_show_and_own_a_model(
    plane: ControlPlane,
    kubelets: Any,
    admin: RawApi,
    tmp_path: Path,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The read token comes from the environment, as in the chart."""
    kubelets("l4-0", gpus=1, third=96)
    monkeypatch.setenv("SHOAL_READ_TOKEN", "r" * 16)
    http = f"127.0.0.1:{free_port()}"
    control = RealControl.of(start, tmp_path, CONFIG)
    control.run(plane, "--models-from", f"http://{http}", http=http)
    try:
        path = f"{MODELS}/{object_name('Chat_v1.5')}"
        found = await until(admin, path, reported("AllReady", "Ready"), 400.0)
        pods = await until(admin, PODS, lambda found: all(map(is_owned, found["items"])))
    except AssertionError as error:
        raise AssertionError(f"{error} {control.log()}") from None
    status = found["status"]
    assert (status["wanted"], status["ready"], status["mode"]) == (1, 1, "act")
    assert status["usdPerHour"] == 0.5
    assert status["lastDecision"]["kind"] == "ScaleOut" and status["lastDecision"]["cause"]
    assert owners_of(pods["items"][0])["ShoalModel"]["uid"] == found["metadata"]["uid"]
