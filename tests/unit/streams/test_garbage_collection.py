"""Cycles that have grown old are collected while a process runs, and memory is returned."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import weakref
from pathlib import Path

import pytest

from streams.garbage_collection import collect_all, keep_collecting


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
        collecting = asyncio.create_task(keep_collecting(every_s=0.01))
        await asyncio.wait_for(gone.wait(), timeout=30.0)
        collecting.cancel()

    gc.disable()
    try:
        asyncio.run(run())
    finally:
        gc.enable()


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs glibc")
def test_the_gaps_between_objects_that_stay_are_returned() -> None:
    before_mib = _memory_mib()
    many = [bytes(8192) for _ in range(10_000)]
    stay = many[::100]
    del many
    collect_all()
    assert _memory_mib() - before_mib < 20.0
    assert len(stay) == 100


def _memory_mib() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) / 1024.0
