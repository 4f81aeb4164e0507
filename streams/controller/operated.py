"""What stands beside the loop for the people who run it: the decision log.

Owns opening and closing these. The loop knows nothing of them but that it is watched.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from streams.controller.loop import Loop
from streams.controller.options import Operated
from streams.decisionlog.writer import DecisionLog


@contextlib.asynccontextmanager
async def operated(settings: Operated, controller_id: str, loop: Loop) -> AsyncIterator[None]:
    """While inside, `loop` is watched by what `settings` asks for."""
    log = None
    if settings.record is not None:
        log = DecisionLog(settings.record, controller_id, settings.record_bytes)
        log.start()
        loop.watchers = (*loop.watchers, log.tick)
    try:
        yield
    finally:
        if log is not None:
            log.close()
