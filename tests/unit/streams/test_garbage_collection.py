"""Cycles that have grown old are collected while a process runs."""

from __future__ import annotations

import asyncio
import gc
import weakref

from streams.garbage_collection import collect_all


class _Connection:
    """Refers to itself, as closed connections do."""

    def __init__(self) -> None:
        self.transport = self


def test_old_cycles_are_collected_without_new_objects() -> None:
    gone = asyncio.Event()
    connection = _Connection()
    gc.collect()  # now it is old
    weakref.finalize(connection, gone.set)
    del connection

    async def run() -> None:
        collecting = asyncio.create_task(collect_all(every_s=0.01))
        await asyncio.wait_for(gone.wait(), timeout=30.0)
        collecting.cancel()

    gc.disable()
    try:
        asyncio.run(run())
    finally:
        gc.enable()
