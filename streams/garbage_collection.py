"""How often a process that reads telemetry looks for garbage in cycles.

Owns that one setting, and that of a process that begins to work on much that stays.
"""

from __future__ import annotations

import gc


def collect_seldom() -> None:
    """Look once in 50,000 new objects, not in 700. A batch of records is thousands of them, all in
    use until the windows have counted it, and looking through them again and again took a sixth of
    the time that reading took."""
    gc.set_threshold(50_000)


def keep() -> None:
    """Keep all that is there, which is never looked through again: arrivals of a simulation never
    change. After that as `collect_seldom`."""
    gc.collect()  # what is garbage by now would be kept for ever
    gc.freeze()
    collect_seldom()
