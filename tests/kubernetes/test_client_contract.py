"""The API client with a real API server: every failure becomes the right error."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from executors.kubernetes.kube_client import KubeClient, Manifest
from executors.kubernetes.kube_errors import (
    Conflict,
    Expired,
    Forbidden,
    KubeError,
    NotFound,
    Temporary,
    Unauthorized,
)
from executors.kubernetes.kube_kinds import DEPLOYMENT, NODE, POD, Kind
from executors.kubernetes.object_cache import ObjectCache
from tests.kubernetes.plane.control_plane import ControlPlane
from tests.kubernetes.plane.raw_api import RawApi

CONFIG_MAP = Kind("", "v1", "ConfigMap", "configmaps")


def config_map(name: str) -> Manifest:
    return {"metadata": {"name": name, "labels": {"of": "contract"}}, "data": {"a": "1"}}


async def until(condition: object, limit_s: float = 20.0) -> None:
    assert callable(condition)
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.05)


async def test_objects_are_created_read_patched_listed_and_deleted(client: KubeClient) -> None:
    made = await client.create(CONFIG_MAP, config_map("one"))
    assert made["metadata"]["namespace"] == "serving"
    await client.patch(CONFIG_MAP, "one", {"data": {"b": "2"}})
    assert (await client.read(CONFIG_MAP, "one"))["data"] == {"a": "1", "b": "2"}
    listing = await client.list_objects(CONFIG_MAP, "of=contract")
    assert [item["metadata"]["name"] for item in listing.objects] == ["one"]
    assert int(listing.version) > 0
    await client.delete(CONFIG_MAP, "one", 0)
    with pytest.raises(NotFound):
        await client.read(CONFIG_MAP, "one")


async def test_a_second_create_is_a_conflict_that_exists(client: KubeClient) -> None:
    await client.create(CONFIG_MAP, config_map("two"))
    with pytest.raises(Conflict) as error:
        await client.create(CONFIG_MAP, config_map("two"))
    assert error.value.exists
    await client.delete(CONFIG_MAP, "two", 0)


async def test_an_old_version_of_the_scale_is_a_conflict(client: KubeClient) -> None:
    labels = {"app": "c"}
    container = {"name": "c", "image": "c"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    await client.create(DEPLOYMENT, {"metadata": {"name": "c"}, "spec": spec})
    before = await client.read_scale(DEPLOYMENT, "c")
    assert (before.replicas, before.selector) == (0, "app=c")
    await client.patch(DEPLOYMENT, "c", {"metadata": {"annotations": {"changed": "1"}}})
    with pytest.raises(Conflict) as error:
        await client.write_scale(DEPLOYMENT, "c", 1, before.version)
    assert not error.value.exists
    assert await written_replicas(client, "c") == 0
    await client.delete(DEPLOYMENT, "c", 0)


async def written_replicas(client: KubeClient, name: str) -> int:
    """Write the present scale again. The cluster's own controllers may change the object between
    the read and the write, so a few conflicts are allowed."""
    for _ in range(10):
        now = await client.read_scale(DEPLOYMENT, name)
        try:
            return (await client.write_scale(DEPLOYMENT, name, 0, now.version)).replicas
        except Conflict:
            continue
    pytest.fail("the present version was a conflict ten times")


async def test_a_missing_right_is_forbidden(plane: ControlPlane) -> None:
    client = KubeClient(str(plane.kubeconfig("shoal-observe")))
    client.open()
    with pytest.raises(Forbidden) as error:
        await client.create(POD, {"metadata": {"name": "p"}, "spec": {"containers": []}})
    assert not error.value.over_quota
    assert (await client.list_objects(NODE)).version
    await client.close()


async def test_an_invalid_object_is_refused_and_not_retried(client: KubeClient) -> None:
    with pytest.raises(KubeError) as error:
        await client.create(POD, {"metadata": {"name": "p"}, "spec": {"containers": []}})
    assert error.value.code == 422
    assert not isinstance(error.value, Temporary)


async def test_an_expired_token_is_read_again_from_the_file(
    plane: ControlPlane, tmp_path: Path
) -> None:
    path = tmp_path / "renewed"
    plane.write_kubeconfig(path, "expired")
    client = KubeClient(str(path))
    client.open()
    with pytest.raises(Unauthorized):
        await client.list_objects(POD)
    path.write_text(plane.kubeconfig().read_text())
    assert (await client.list_objects(POD)).version
    await client.close()


async def test_a_throttled_request_is_temporary_with_the_pause_that_the_server_asks_for(
    plane: ControlPlane, admin: RawApi
) -> None:
    flow = "/apis/flowcontrol.apiserver.k8s.io/v1"
    limited = {"nominalConcurrencyShares": 1, "lendablePercent": 0, "borrowingLimitPercent": 0,
               "limitResponse": {"type": "Reject"}}  # fmt: skip
    level = {"metadata": {"name": "none"}, "spec": {"type": "Limited", "limited": limited}}
    account = {"name": "shoal-pods", "namespace": "serving"}
    rule = {"subjects": [{"kind": "ServiceAccount", "serviceAccount": account}],
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"],
                               "namespaces": ["*"], "clusterScope": True}]}  # fmt: skip
    schema = {"metadata": {"name": "none"}, "spec": {
        "priorityLevelConfiguration": {"name": "none"}, "matchingPrecedence": 2,
        "rules": [rule]}}  # fmt: skip
    await admin.post(f"{flow}/prioritylevelconfigurations", level)
    await admin.post(f"{flow}/flowschemas", schema)
    client = KubeClient(str(plane.kubeconfig("shoal-pods")))
    client.open()
    refused: list[BaseException] = []
    try:
        async with asyncio.timeout(60):
            while not refused:
                asked = [client.list_objects(POD) for _ in range(100)]
                answers = await asyncio.gather(*asked, return_exceptions=True)
                refused = [item for item in answers if isinstance(item, BaseException)]
    finally:
        await admin.delete(f"{flow}/flowschemas/none")
        await admin.delete(f"{flow}/prioritylevelconfigurations/none")
        await client.close()
    throttled = [item for item in refused if isinstance(item, Temporary) and item.code == 429]
    assert throttled, refused[:3]
    assert throttled[0].retry_after_s > 0


async def test_a_local_copy_misses_no_change_while_the_server_is_killed(
    plane: ControlPlane, client: KubeClient
) -> None:
    for name in ("stays", "goes"):
        await client.create(CONFIG_MAP, config_map(name))
    cache = ObjectCache(client, CONFIG_MAP, lambda raw: raw["data"], "of=contract")
    following = asyncio.create_task(cache.run())
    await until(lambda: set(cache.objects) == {"stays", "goes"})
    plane.kill_api_server()
    with pytest.raises(Temporary) as error:
        await client.read(CONFIG_MAP, "stays")
    assert error.value.code == 0
    await until(lambda: cache.fault)
    assert set(cache.objects) == {"stays", "goes"}  # Silence is no deletion.
    await asyncio.to_thread(plane.start_api_server)
    await client.delete(CONFIG_MAP, "goes", 0)
    await client.create(CONFIG_MAP, config_map("new"))
    await until(lambda: set(cache.objects) == {"stays", "new"} and not cache.fault)
    # The restarted server does not know the versions before its start.
    with pytest.raises(Expired):
        async with asyncio.timeout(20):
            async for _ in client.watch(NODE, "1", "", 5):
                pass
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    for name in ("stays", "new"):
        await client.delete(CONFIG_MAP, name, 0)
