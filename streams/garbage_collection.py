"""Settings of Python's cyclic garbage collector for processes that read telemetry."""

from __future__ import annotations

import asyncio
import gc
from typing import NoReturn

_FULL_EVERY_S = 300.0


def collect_rarely() -> None:
    """Collect once per 50,000 new objects instead of 700.

    All objects of a batch of records stay in use until the windows have counted the batch. More
    frequent collections would waste time.
    """
    gc.set_threshold(50_000)


async def collect_all(every_s: float = _FULL_EVERY_S) -> NoReturn:
    """Collect old objects too, every `every_s` seconds.

    Closed connections are cycles. They grow old while they are open, and Python collects old
    objects only when a quarter of all objects has grown old since the last time.
    """
    while True:
        await asyncio.sleep(every_s)
        gc.collect()


def freeze_objects() -> None:
    """Exempt all existing objects from collection, because the arrivals of a simulation never
    change.

    New objects are collected as in `collect_rarely`.
    """
    gc.collect()  # Otherwise existing garbage would never be freed.
    gc.freeze()
    collect_rarely()
