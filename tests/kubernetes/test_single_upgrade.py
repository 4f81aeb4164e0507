"""Without Kafka, gateways outside of the single pod serve while that pod is replaced or gone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import make_certificate
from tests.kubernetes.outside_gateways import PRE_STOP_S, Gateways
from tests.kubernetes.plane.control_plane import ControlPlane
from tests.kubernetes.plane.raw_api import RawApi
from tests.kubernetes.test_scale_mode import APPS, workload
from tests.kubernetes.test_single_restart import INSTANCES, PODS, Single
from tests.tcp_service import TcpService

STREAMS = 1000


class Upgrade:
    """Two single pods, one after the other, behind one Service, and two gateways."""

    def __init__(self, folder: Path, plane: ControlPlane, mode: str) -> None:
        tls = make_certificate(folder / "tls")
        account = plane.kubeconfig(f"shoal-{mode}")
        folders = [folder / name for name in ("former", "next")]
        for each in folders:
            each.mkdir()
        self.former, self.following = (
            Single(each, account, mode, each.name, tls) for each in folders
        )
        self.service = TcpService()
        self._folder, self._tls = folder, tls
        self._config = folder / "shoal.yaml"
        self._config.write_text(self.former.text("l4"))
        self.gateways = Gateways(folder, self._config, tls, 0)

    @contextlib.asynccontextmanager
    async def serving(self, stack: contextlib.AsyncExitStack) -> AsyncIterator[None]:
        """The former pod in `stack`, its instances ready, and both gateways with its routes."""
        async with self.service.running():
            port = self.service.port
            self.gateways = Gateways(self._folder, self._config, self._tls, port)
            async with self.gateways.running():
                await self.former.until(self._waiting)
                await stack.enter_async_context(self.former.running("l4"))
                await self.former.until(self.former.is_ready)
                self.service.endpoints = [self.former.broker]
                await self.former.until(self.former.steady)
                await self.former.until(self.routed)
                yield

    async def _waiting(self) -> bool:
        return await self.gateways.ready() == [503, 503]

    async def routed(self) -> bool:
        """Whether both gateways are Ready, with all instances."""
        sizes = [sum(len(g.aggregated) for g in one.groups) for one in self.gateways.routes()]
        return await self.gateways.ready() == [200, 200] and sizes == [INSTANCES] * 2

    async def new_routes(self, admin: RawApi) -> None:
        """Delete an engine, and wait until both gateways have its replacement."""
        pod = (await admin.get(PODS))["items"][0]
        await admin.delete(f"{PODS}/{pod['metadata']['name']}", 0)

        async def routed_elsewhere() -> bool:
            found = [
                end.address
                for one in self.gateways.routes()
                for group in one.groups
                for end in group.aggregated
            ]
            return await self.routed() and not [a for a in found if pod["status"]["podIP"] in a]

        await self.following.until(routed_elsewhere)


async def serving_pods(admin: RawApi) -> set[str]:
    return {pod["metadata"]["uid"] for pod in (await admin.get(PODS))["items"]}


@pytest.mark.parametrize("mode", ["pods", "scale"])
async def test_an_upgrade_of_the_single_pod_refuses_no_request_and_breaks_no_stream(
    plane: ControlPlane, kubelets: Any, admin: RawApi, tmp_path: Path, mode: str
) -> None:
    """The gateways are replaced at the same time. They then follow the new controller: they leave
    an engine that it replaces."""
    nodes = [f"up-{mode}-{n}" for n in range(6)]
    kubelets(*nodes, gpus=1, labels=("pool=l4",), third={"pods": 92, "scale": 93}[mode])
    if mode == "scale":
        await admin.post(f"{APPS}/deployments", workload(2))
    upgrade = Upgrade(tmp_path, plane, mode)
    former, following = upgrade.former, upgrade.following
    async with contextlib.AsyncExitStack() as stack:
        old = await stack.enter_async_context(contextlib.AsyncExitStack())
        await stack.enter_async_context(upgrade.serving(old))
        gateways, before = upgrade.gateways, await serving_pods(admin)
        async with gateways.load(per_s=10):
            await asyncio.sleep(3)
            rolling = asyncio.create_task(gateways.roll())
            await stack.enter_async_context(following.running("l4"))
            await following.until(following.is_ready)
            upgrade.service.endpoints = [former.broker, following.broker]
            await asyncio.sleep(1)
            upgrade.service.endpoints = [following.broker]
            await asyncio.sleep(PRE_STOP_S)
            await old.aclose()
            await following.until(following.steady)
            await rolling
            while sum(gateways.counts.values()) < STREAMS:
                await asyncio.sleep(0.5)
        print("upgrade", mode, dict(gateways.counts))
        assert set(gateways.counts) == {"ok"}, gateways.log()
        assert await serving_pods(admin) == before
        lease = "/apis/coordination.k8s.io/v1/namespaces/serving/leases/shoal-single"
        assert (await admin.get(lease))["spec"]["holderIdentity"] == "next"
        await upgrade.new_routes(admin)


async def test_gateways_serve_while_no_single_pod_runs(
    plane: ControlPlane, kubelets: Any, admin: RawApi, tmp_path: Path
) -> None:
    """The pod is killed with its broker. The next one begins with empty topics."""
    kubelets(*(f"gap-{n}" for n in range(6)), gpus=1, labels=("pool=l4",), third=94)
    upgrade = Upgrade(tmp_path, plane, "pods")
    former, following = upgrade.former, upgrade.following
    async with contextlib.AsyncExitStack() as stack:
        old = await stack.enter_async_context(contextlib.AsyncExitStack())
        await stack.enter_async_context(upgrade.serving(old))
        gateways, before = upgrade.gateways, await serving_pods(admin)
        async with gateways.load(per_s=10):
            await asyncio.sleep(3)
            upgrade.service.endpoints = []
            former.kill()
            await old.aclose()
            await asyncio.sleep(20)  # an outage
            assert await gateways.ready() == [200, 200]
            await stack.enter_async_context(following.running("l4"))
            await following.until(following.is_ready)
            upgrade.service.endpoints = [following.broker]
            await following.until(following.steady)
            while sum(gateways.counts.values()) < STREAMS:
                await asyncio.sleep(0.5)
        print("gap", dict(gateways.counts))
        assert set(gateways.counts) == {"ok"}, gateways.log()
        assert await serving_pods(admin) == before
        await upgrade.new_routes(admin)
