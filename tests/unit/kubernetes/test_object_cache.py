"""The local copy of objects after changes, expired versions and server outages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from executors.kubernetes import object_cache
from executors.kubernetes.kube_client import Manifest
from executors.kubernetes.kube_errors import NotFound
from executors.kubernetes.kube_kinds import POD
from executors.kubernetes.object_cache import ObjectCache
from tests.unit.kubernetes.fake_cluster import FakeCluster


def pod(name: str, **labels: str) -> Manifest:
    return {"metadata": {"name": name, "labels": labels}, "spec": {}}


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.fixture
async def fleet(
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[tuple[FakeCluster, ObjectCache[str]]]:
    monkeypatch.setattr(object_cache, "_LEAST_PAUSE_S", 0.0)
    cluster = FakeCluster()
    cluster.put(POD, pod("old", a="1"))
    cache = ObjectCache(cluster, POD, lambda raw: str(raw["metadata"]["name"]), "a=1")
    task = asyncio.create_task(cache.run())
    await settle()
    yield cluster, cache
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_changes_and_deletions_arrive(fleet: tuple[FakeCluster, ObjectCache[str]]) -> None:
    cluster, cache = fleet
    assert cache.synced
    cluster.put(POD, pod("new", a="1"))
    cluster.put(POD, pod("other", a="2"))
    cluster.remove(POD, "old")
    await settle()
    assert set(cache.objects) == {"new"}


async def test_a_deletion_during_an_expired_watch_is_seen_by_the_next_list(
    fleet: tuple[FakeCluster, ObjectCache[str]],
) -> None:
    cluster, cache = fleet
    cluster.remove(POD, "old")
    cluster.forget_history()
    await settle()
    assert cache.objects == {}


async def test_a_server_that_is_away_deletes_nothing(
    fleet: tuple[FakeCluster, ObjectCache[str]],
) -> None:
    cluster, cache = fleet
    cluster.down = True
    cluster.put(POD, pod("new", a="1"))  # This wakes the watch, which then fails.
    await settle()
    assert set(cache.objects) == {"old"}
    assert "connection refused" in cache.fault
    cluster.down = False
    await settle()
    assert set(cache.objects) == {"old", "new"}
    assert not cache.fault


async def test_an_object_that_was_just_written_is_known_before_the_watch_reports_it() -> None:
    cluster = FakeCluster()
    cache = ObjectCache(cluster, POD, lambda raw: str(raw["metadata"]["name"]))
    cache.put(pod("mine"))
    assert set(cache.objects) == {"mine"}


def named(raw: Manifest) -> str:
    """Refuses the annotation `broken`."""
    if raw["metadata"].get("annotations"):
        raise ValueError("broken")
    return str(raw["metadata"]["labels"]["a"])


async def test_an_object_that_cannot_be_read_is_named_and_all_others_stay_current(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(object_cache, "_LEAST_PAUSE_S", 0.0)
    cluster = FakeCluster()
    broken = {"metadata": {"name": "broken", "annotations": {"x": "y"}}}
    cluster.put(POD, broken)
    cluster.put(POD, pod("old", a="1"))
    cache = ObjectCache(cluster, POD, named)
    task = asyncio.create_task(cache.run())
    await settle()
    assert cache.synced and cache.objects == {"old": "1"}
    assert cache.fault == "pods/broken cannot be read: ValueError: broken"
    cluster.put(POD, pod("new", a="2"))
    cluster.change(POD, "old", {"metadata": {"annotations": {"x": "y"}}})  # keeps its former form
    await settle()
    assert cache.objects == {"old": "1", "new": "2"}
    assert cache.fault.endswith("and 1 more")
    cluster.forget_history()  # a new list
    await settle()
    assert cache.objects == {"old": "1", "new": "2"}
    cluster.change(POD, "old", {"metadata": {"annotations": None, "labels": {"a": "3"}}})
    cluster.remove(POD, "broken")
    await settle()
    assert cache.objects == {"old": "3", "new": "2"}
    assert cache.fault == ""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_kind_that_comes_back_is_listed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects leave with their definition, and a watch does not always tell."""
    monkeypatch.setattr(object_cache, "_NO_KIND_PAUSE_S", 0.0)
    monkeypatch.setattr(object_cache, "_LEAST_PAUSE_S", 0.0)

    class Server(FakeCluster):
        gone = False

        def _check(self) -> None:
            super()._check()
            if self.gone:
                raise NotFound(404, "NotFound", "no such kind")

    cluster = Server()
    cluster.put(POD, pod("old"))
    cache = ObjectCache(cluster, POD, lambda raw: str(raw["metadata"]["name"]))
    task = asyncio.create_task(cache.run())
    await settle()
    assert set(cache.objects) == {"old"}
    cluster.gone = True
    cluster.put(POD, pod("other"))  # This wakes the watch, which then fails.
    await settle()
    assert cache.absent
    del cluster.objects["pods", "old"]
    cluster.gone = False
    await settle()
    assert not cache.absent and set(cache.objects) == {"other"}
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
