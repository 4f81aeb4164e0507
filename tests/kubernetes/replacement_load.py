"""Replace instances again and again while a router sends streams to their pods."""

from __future__ import annotations

import asyncio

from tests.kubernetes.executor_bench import Bench, wish
from tests.kubernetes.label_router import LabelRouter
from topics.fleet import DesiredInstance, InstanceState

_GPUS, _LANES, _EXCHANGES, _STREAMS = 4, 5, 10, 1000


async def replace_all_under_load(
    bench: Bench, router: LabelRouter, slots: tuple[str, str], may_fail: bool = False
) -> int:
    """Fill both slots with instances of one GPU, then drain and replace 50 of them in five parallel
    lanes, and end after 1,000 streams. may_fail: whether instances may fail to start; others take
    their places, as from a controller. Returns the number of drained instances."""
    current = {n: (slots[n // _GPUS], n % _GPUS, f"i{n}") for n in range(len(slots) * _GPUS)}
    retired: dict[str, list[DesiredInstance]] = {slot: [] for slot in slots}

    def publish() -> None:
        for slot in slots:
            own = [wish(name, gpu) for at, gpu, name in current.values() if at == slot]
            bench.assign(slot, *own, *retired[slot])

    async def serving(lane: int) -> None:
        """Wait until the instance of the lane is ready."""
        ends = (InstanceState.READY, *((InstanceState.FAILED,) if may_fail else ()))

        def is_in(*states: InstanceState) -> bool:
            slot, _, name = current[lane]
            return any(bench.is_in(slot, name, state) for state in states)

        while True:
            await bench.until(lambda: is_in(*ends), 90)
            if is_in(InstanceState.READY):
                return
            slot, gpu, name = current[lane]
            current[lane] = (slot, gpu, f"{name}x")
            publish()

    async def exchange(lane: int, number: int) -> None:
        """Drain one instance, then start another one in its place."""
        slot, gpu, name = current.pop(lane)
        retired[slot].append(wish(name, gpu, drain=True))
        publish()
        await bench.until(lambda: bench.is_in(slot, name, InstanceState.STOPPED), 90)
        retired[slot] = [item for item in retired[slot] if item.instance != name]
        current[lane] = (slot, gpu, f"i{lane}-{number}")
        publish()
        await serving(lane)

    async def churn(lane: int) -> int:
        for number in range(_EXCHANGES):
            await exchange(lane, number)
        return _EXCHANGES

    publish()
    for lane in current:
        await serving(lane)
    await bench.until(lambda: len(router.table) == len(current))
    router.load(streams_per_s=20, stream_s=2.0)
    downs = sum(await asyncio.gather(*(churn(lane) for lane in range(_LANES))))
    while sum(router.counts.values()) < _STREAMS:
        await asyncio.sleep(0.5)
    await router.finish()
    return downs
