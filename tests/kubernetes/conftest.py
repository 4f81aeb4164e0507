"""Fixtures of the tests on a real control plane (`make test-kubernetes`)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from executors.kubernetes.kube_client import KubeClient
from tests.kubernetes.plane.build_plane import is_built, plane_folder
from tests.kubernetes.plane.control_plane import ACCOUNTS, NAMESPACE, ControlPlane
from tests.kubernetes.plane.raw_api import RawApi

_USED = "shoal/used_rights"
_ROOT = Path(__file__).parents[2]
_RBAC = _ROOT / "deploy" / "kubernetes" / "rbac.yaml"
_PATHS = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts",
    "Role": f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/roles",
    "RoleBinding": f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/rolebindings",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the folder if no control plane was built or requested.

    Waits have limits of their own, so a whole test may take long on a busy machine.
    """
    built = is_built(plane_folder())
    mark = pytest.mark.skip(reason="no control plane was built: run make test-kubernetes")
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(600))
            if not built:
                item.add_marker(mark)


@pytest.fixture
async def client(plane: ControlPlane, request: pytest.FixtureRequest) -> AsyncIterator[KubeClient]:
    """The executor's client, as the account `ACCOUNT` of the test's module; the administrator
    without one."""
    account = getattr(request.module, "ACCOUNT", "")
    made = KubeClient(str(plane.kubeconfig(account) if account else plane.kubeconfig()))
    made.open()
    yield made
    await made.close()


UsedRights = Callable[[str], set[tuple[str, str, str]]]
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture(scope="session")
def used_rights(plane: ControlPlane, pytestconfig: pytest.Config) -> Iterator[UsedRights]:
    """Permitted requests of an account in this run and, if it repeats only failed tests, in the
    runs before it: (group, resource, verb).
    """
    cache = getattr(pytestconfig, "cache", None)
    again = cache is not None and pytestconfig.getoption("lf")
    earlier = cache.get(_USED, {}) if again else {}

    def used(account: str) -> set[tuple[str, str, str]]:
        return {tuple(one) for one in earlier.get(account, ())} | plane.allowed_requests(account)

    yield used
    if cache is not None:
        cache.set(_USED, {account: sorted(used(account)) for account in ACCOUNTS})


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with the namespace `serving` and Shoal's rights."""
    made = ControlPlane(plane_folder(), tmp_path_factory.mktemp("plane"))
    made.start()
    try:
        asyncio.run(_apply_rights(made))
        yield made
    finally:
        made.stop()


@pytest.fixture
async def admin(plane: ControlPlane) -> AsyncIterator[RawApi]:
    """Requests as the administrator."""
    async with RawApi(plane.kubeconfig()) as api:
        yield api


@pytest.fixture
def kubelets(plane: ControlPlane) -> Iterator[Callable[..., str]]:
    """Starts kubelets that end with the test."""
    started: list[str] = []

    def start(*nodes: str, third: int, **more: Any) -> str:
        started.append(plane.start_kubelet(list(nodes), third=third, **more))
        return started[-1]

    yield start
    for name in started:
        plane.stop_process(name)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts `python -m ...`; the processes end with the test, the last one first."""
    started: list[subprocess.Popen[bytes]] = []

    def spawn(*argv: str) -> subprocess.Popen[bytes]:
        with (tmp_path / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *argv], cwd=_ROOT, env=dict(os.environ),
                stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
        started.append(process)
        return process

    yield spawn
    for process in reversed(started):
        process.terminate()
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture(autouse=True)
async def empty(plane: ControlPlane, used_rights: UsedRights) -> AsyncIterator[None]:
    """Removes the workloads and pods that a test leaves."""
    yield
    async with RawApi(plane.kubeconfig()) as api:
        for kind in ("deployments", "statefulsets"):
            path = f"/apis/apps/v1/namespaces/{NAMESPACE}/{kind}"
            for item in (await api.get(path))["items"]:
                await api.delete(f"{path}/{item['metadata']['name']}")
        pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
        async with asyncio.timeout(60):
            while found := (await api.get(pods))["items"]:
                for pod in found:
                    await api.delete(f"{pods}/{pod['metadata']['name']}", 0)
                await asyncio.sleep(0.2)


async def _apply_rights(plane: ControlPlane) -> None:
    async with RawApi(plane.kubeconfig()) as api:
        for manifest in yaml.safe_load_all(_RBAC.read_text()):
            await api.post(_PATHS[manifest["kind"]], manifest)


os.environ.setdefault("PYTHONPATH", str(Path(__file__).parents[2]))
