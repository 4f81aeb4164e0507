"""Port: where demand is seen. First implementations: `telemetry_topic`, `promql`.

A source turns what it sees into telemetry records with event times, so that everything after it
(windows, significance, no data against zero) is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from topics.telemetry_columns import TelemetryBatch

Sink = Callable[[TelemetryBatch, NDArray[np.int64]], None]
"""Records that came together, and the event time of the end of each one's span in domain ms: called
on the event loop."""


class DemandSource(Protocol):
    """Somewhere requests are counted."""

    async def replay(self, sink: Sink) -> None:
        """Give the sink what is kept of the past windows; returns when it has caught up."""

    async def follow(self, sink: Sink) -> None:
        """Give the sink what comes, until cancelled; continues where `replay` ended."""

    async def live(self) -> None:
        """Return once `follow` gave all there was when it began: from then on silence is news."""
