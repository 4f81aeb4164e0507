"""Settings of Python's cyclic garbage collector for processes that read telemetry."""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import Callable
from typing import NoReturn

_FULL_EVERY_S = 300.0
_trim: Callable[[int], object] = getattr(ctypes.CDLL(None), "malloc_trim", lambda _keep: 0)


def collect_rarely() -> None:
    """Collect once per 50,000 new objects instead of 700.

    All objects of a batch of records stay in use until the windows have counted the batch. More
    frequent collections would waste time.
    """
    gc.set_threshold(50_000)


def collect_all() -> None:
    """Collect old objects too, and return free memory to the operating system.

    Closed connections are cycles. They grow old while they are open, and Python collects old
    objects only when a quarter of all objects has grown old since the last time. Large results that
    live for seconds lie between small ones that live for hours, so glibc keeps the gaps, and over
    days there are more of them. Other C libraries have no `malloc_trim`.
    """
    gc.collect()
    _trim(0)


async def keep_collecting(every_s: float = _FULL_EVERY_S) -> NoReturn:
    """Call `collect_all` every `every_s` seconds."""
    while True:
        await asyncio.sleep(every_s)
        collect_all()


def freeze_objects() -> None:
    """Exempt all existing objects from collection, because the arrivals of a simulation never
    change.

    New objects are collected as in `collect_rarely`.
    """
    gc.collect()  # Otherwise existing garbage would never be freed.
    gc.freeze()
    collect_rarely()
