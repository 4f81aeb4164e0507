"""The Helm chart on a real API server: install, upgrade, roll back, uninstall. Engines stay."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.conftest import CONFIG, KAFKA
from tests.chart.helm_tools import CHART, NoTools, helm, tools
from tests.kubernetes.plane.control_plane import ControlPlane
from tests.kubernetes.plane.raw_api import RawApi

FLEET = "fleet"
PODS = "/api/v1/namespaces/serving/pods"
TEMPLATE = "spec: {containers: [{name: engine, image: engine}]}"
MAY = {
    "observe": {("list", "pods"), ("list", "deployments.apps")},
    "scale": {("list", "pods"), ("list", "deployments.apps"), ("patch", "pods"),
              ("patch", "deployments.apps/scale"), ("create", "events")},
}  # fmt: skip
MAY["pods"] = MAY["scale"] | {("create", "pods"), ("delete", "pods")}
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/shoalmodels.shoal.dev"
MODELS = {(verb, "shoalmodels.shoal.dev") for verb in ("list", "watch", "create", "delete")} | {
    ("patch", "shoalmodels.shoal.dev/status")
}
ASKED = (
    set().union(*MAY.values())
    | MODELS
    | {("get", "secrets"), ("update", "pods"), ("create", "roles")}
)


@pytest.fixture
def run(plane: ControlPlane, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Runs Helm on the test cluster. The release is removed at the end."""
    try:
        tools()
    except NoTools as error:
        pytest.skip(f"skipped: {error}")

    def begin(*options: str, values: dict[str, Any] | None = None) -> str:
        more: list[str] = []
        if values is not None:
            file = tmp_path / "values.yaml"
            file.write_text(yaml.safe_dump({"config": {"text": CONFIG}} | values))
            more = ["--values", str(file)]
        cluster = ["--kubeconfig", str(plane.kubeconfig()), "--namespace", FLEET]
        done = helm(*options, *cluster, *more)
        assert done.returncode == 0, done.stderr
        return done.stdout

    yield begin
    cluster = ("--kubeconfig", str(plane.kubeconfig()), "--namespace", FLEET)
    helm("uninstall", "shoal", *cluster, "--ignore-not-found")


async def rights(admin: RawApi, namespace: str) -> set[tuple[str, str]]:
    """Verbs in `namespace` that the executor's account of the release has, of those ASKED."""
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    found = set()
    for verb, target in ASKED:
        resource, _, part = target.partition("/")
        resource, _, group = resource.partition(".")
        about = {"namespace": namespace, "verb": verb, "group": group, "resource": resource,
                 "subresource": part}  # fmt: skip
        user = f"system:serviceaccount:{FLEET}:shoal-executor"
        _, answer = await admin.call(
            "POST", path, {"spec": {"user": user, "resourceAttributes": about}}
        )
        if answer["status"]["allowed"]:
            found.add((verb, target))
    return found


async def until_rights(admin: RawApi, expected: set[tuple[str, str]]) -> None:
    """Wait until the API server's authorizer has the new Role."""
    async with asyncio.timeout(20):
        while await rights(admin, "serving") != expected:
            await asyncio.sleep(0.3)
    for elsewhere in (FLEET, "default", "kube-system"):
        assert not await rights(admin, elsewhere)


@pytest.mark.timeout(400)
async def test_a_release_changes_its_mode_and_leaves_while_an_engine_serves(
    plane: ControlPlane, kubelets: Any, admin: RawApi, run: Callable[..., str]
) -> None:
    kubelets("c0", third=90)
    engine = {"metadata": {"name": "engine", "labels": {"shoal.dev/managed": "true"}},
              "spec": {"containers": [{"name": "engine", "image": "engine"}]}}  # fmt: skip
    await admin.post(PODS, engine)
    uid = (await admin.get(f"{PODS}/engine"))["metadata"]["uid"]
    # No node has this label, so no container of the release starts: the test has no images.
    there = {"engines": {"namespace": "serving"}, "pod": {"nodeSelector": {"pool": "none"}}}

    apps = f"/apis/apps/v1/namespaces/{FLEET}"

    async def made(name: str, replicas: int, kinds: str = "deployments") -> None:
        async with asyncio.timeout(60):
            while True:
                found = await admin.get(f"{apps}/{kinds}/{name}")
                if found and found["status"].get("replicas", 0) == replicas:
                    return
                await asyncio.sleep(0.3)

    await asyncio.to_thread(run, "install", "shoal", str(CHART), "--create-namespace", values=there)
    await until_rights(admin, MAY["observe"])
    await made("shoal", 1)
    await made("shoal-gateway", 2, "statefulsets")
    secret = f"/api/v1/namespaces/{FLEET}/secrets/shoal-broker"
    certificate = (await admin.get(secret))["data"]
    await asyncio.to_thread(run, "upgrade", "shoal", str(CHART), values=there)
    assert (await admin.get(secret))["data"] == certificate

    scale = {**there, **KAFKA, "executor": {"mode": "scale"}, "gateway": {"replicas": 3}}
    await asyncio.to_thread(run, "upgrade", "shoal", str(CHART), values=scale)
    await until_rights(admin, MAY["scale"])
    await made("shoal-gateway", 3, "statefulsets")
    await made("shoal-executor", 1)
    assert await admin.get(f"{apps}/deployments/shoal") is None  # The single pod's place is taken.

    assert await admin.get(CRD) is None
    pods = {**there, "executor": {"mode": "pods", "podTemplates": {"pod.yaml": TEMPLATE}}}
    values = {**KAFKA, **pods, "models": {"enabled": True}}
    await asyncio.to_thread(run, "upgrade", "shoal", str(CHART), values=values)
    await until_rights(admin, MAY["pods"] | MODELS)
    assert await admin.get(CRD)

    await asyncio.to_thread(run, "rollback", "shoal", "3")
    await until_rights(admin, MAY["scale"])
    async with asyncio.timeout(60):
        while await admin.get(CRD):
            await asyncio.sleep(0.3)
    history = json.loads(await asyncio.to_thread(run, "history", "shoal", "-o", "json"))
    assert [entry["status"] for entry in history][-1] == "deployed"
    assert len(history) == 5

    await asyncio.to_thread(run, "uninstall", "shoal")
    await until_rights(admin, set())
    for kinds in ("statefulsets", "deployments"):
        assert not (await admin.get(f"{apps}/{kinds}"))["items"]
    roles = await admin.get("/apis/rbac.authorization.k8s.io/v1/clusterroles")
    assert not [one for one in roles["items"] if one["metadata"]["name"].startswith(FLEET)]
    left = await admin.get(f"{PODS}/engine")
    assert left["metadata"]["uid"] == uid and "deletionTimestamp" not in left["metadata"]
