"""Settings of Python's cyclic garbage collector for processes that read telemetry."""

from __future__ import annotations

import gc


def collect_rarely() -> None:
    """Collect once per 50,000 new objects instead of 700.

    All objects of a batch of records stay in use until the windows have counted the batch. More
    frequent collections would waste time. The oldest generation is collected more often than by
    default, because closed connections are cycles that have survived earlier collections.
    """
    gc.set_threshold(50_000, 5, 2)


def freeze_objects() -> None:
    """Exempt all existing objects from collection, because the arrivals of a simulation never
    change.

    New objects are collected as in `collect_rarely`.
    """
    gc.collect()  # Otherwise existing garbage would never be freed.
    gc.freeze()
    collect_rarely()
