"""Of several holders one acts at a time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from executors.kubernetes import lease as module
from executors.kubernetes.kube_kinds import LEASE
from executors.kubernetes.lease import DURATION_S, GIVE_UP_S, Lease
from tests.unit.kubernetes.fake_cluster import FakeCluster


class Clock:
    """A monotonic clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(module, "_RETRY_S", 0.01)
    return Clock()


def holder(cluster: FakeCluster) -> Any:
    return cluster.objects["leases", "shoal"]["spec"]["holderIdentity"]


def begun(coroutine: Any) -> asyncio.Task[Any]:
    return asyncio.create_task(coroutine)


async def turns() -> None:
    """Let every task that does not wait for the clock make progress."""
    await asyncio.sleep(0.05)


async def test_a_standby_acts_as_soon_as_the_holder_releases(clock: Clock) -> None:
    cluster, end = FakeCluster(), asyncio.Event()
    one, other = Lease(cluster, "shoal", "one", clock), Lease(cluster, "shoal", "other", clock)
    assert await one.acquire(end)
    waiting = begun(other.acquire(end))
    await turns()
    assert not waiting.done() and holder(cluster) == "one"
    await one.release()
    assert await asyncio.wait_for(waiting, 5) and holder(cluster) == "other"
    await one.release()  # It no longer holds it.
    assert holder(cluster) == "other"


async def test_a_dead_holder_is_followed_after_the_duration_by_any_clock(clock: Clock) -> None:
    """The time in the object is a year ahead; only the unchanged object counts."""
    cluster, end = FakeCluster(), asyncio.Event()
    spec = {"holderIdentity": "dead", "renewTime": "2099-01-01T00:00:00.000000Z"}
    cluster.put(LEASE, {"metadata": {"name": "shoal"}, "spec": spec})
    waiting = begun(Lease(cluster, "shoal", "next", clock).acquire(end))
    await turns()
    clock.now_s += DURATION_S - 1.0
    await turns()
    assert not waiting.done()
    clock.now_s += 1.5
    assert await asyncio.wait_for(waiting, 5) and holder(cluster) == "next"


async def test_a_living_holder_keeps_it(clock: Clock) -> None:
    cluster, end = FakeCluster(), asyncio.Event()
    one = Lease(cluster, "shoal", "one", clock)
    assert await one.acquire(end)
    held = begun(one.hold())
    waiting = begun(Lease(cluster, "shoal", "other", clock).acquire(end))
    for _ in range(10):
        clock.now_s += 5.0
        await turns()
    assert not held.done() and not waiting.done()
    end.set()
    assert await asyncio.wait_for(waiting, 5) is False
    held.cancel()


async def test_a_holder_that_is_cut_off_ends_before_another_may_act(clock: Clock) -> None:
    cluster, end = FakeCluster(), asyncio.Event()
    one = Lease(cluster, "shoal", "one", clock)
    assert await one.acquire(end)
    held = begun(one.hold())
    cluster.down = True
    await turns()
    assert not held.done()
    clock.now_s += GIVE_UP_S
    await asyncio.wait_for(held, 5)
    assert GIVE_UP_S < DURATION_S


async def test_a_holder_that_was_stopped_sees_its_successor(clock: Clock) -> None:
    cluster, end = FakeCluster(), asyncio.Event()
    one = Lease(cluster, "shoal", "one", clock)
    assert await one.acquire(end)
    cluster.change(LEASE, "shoal", {"spec": {"holderIdentity": "other"}})
    await asyncio.wait_for(one.hold(), 5)
    assert holder(cluster) == "other"


async def test_of_many_that_start_at_once_one_acts(clock: Clock) -> None:
    cluster, end = FakeCluster(), asyncio.Event()
    all_of_them = [begun(Lease(cluster, "shoal", f"h{k}", clock).acquire(end)) for k in range(20)]
    await turns()
    assert sum(task.done() for task in all_of_them) == 1
    end.set()
    assert sum(await asyncio.gather(*all_of_them)) == 1


async def test_a_deleted_lease_is_made_again(clock: Clock) -> None:
    cluster = FakeCluster()
    one = Lease(cluster, "shoal", "one", clock)
    assert await one.acquire(asyncio.Event())
    held = begun(one.hold())
    cluster.remove(LEASE, "shoal")
    await turns()
    assert not held.done() and holder(cluster) == "one"
    held.cancel()
