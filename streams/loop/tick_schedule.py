"""Tick schedule: at a given time, on a planner answer, and soon after new telemetry.

Limits how long a tick waits for more telemetry, and the share of time that ticks use.
"""

from __future__ import annotations

import asyncio

from streams.clock import Clock

_GATHER_S = 0.03
_SPACING_S = 0.1
_REST = 3.0


class TickPacing:
    """Decides when a tick may begin. fresh: set when telemetry arrives. Ticks for new telemetry
    begin at least 0.1 s apart and use at most a quarter of the time."""

    def __init__(self, clock: Clock) -> None:
        self.fresh = asyncio.Event()
        self._clock = clock
        self._not_before_s = 0.0

    def tick_finished(self, began_s: float) -> None:
        """Note that a tick has finished. began_s: its start, in seconds of the clock."""
        took_s = self._clock.now_s() - began_s
        self._not_before_s = began_s + max(_SPACING_S, _REST * took_s)

    async def next(self, wait_s: float, answered: asyncio.Event) -> None:
        """Wait until `wait_s` real seconds have passed, or until a planner answer or telemetry
        arrives.
        """
        deadline_s = self._clock.now_s() + wait_s
        answer = asyncio.ensure_future(answered.wait())
        fresh = asyncio.ensure_future(self.fresh.wait())
        try:
            await asyncio.wait({answer, fresh}, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            if fresh.done() and not answer.done():
                # Records of one second arrive together. Wait, so that one tick reads them all.
                soon_s = max(self._not_before_s, self._clock.now_s() + _GATHER_S)
                left_s = min(soon_s, deadline_s) - self._clock.now_s()
                await asyncio.wait({answer}, timeout=max(0.0, left_s))
        finally:
            answer.cancel()
            fresh.cancel()
        self.fresh.clear()
