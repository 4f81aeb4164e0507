"""Port: a source of demand. First implementations: `telemetry_topic`, `promql`.

A source converts its input to telemetry records with event times, so that windows, significance and
the handling of missing data are the same for every source.
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
    """A place where requests are counted."""

    async def replay(self, sink: Sink) -> None:
        """Pass the stored past of the windows to the sink; returns when it has caught up."""

    async def follow(self, sink: Sink) -> None:
        """Pass new records to the sink until cancelled; continues where `replay` ended."""

    async def live(self) -> None:
        """Return once `follow` has passed on everything that existed when it began: from then on
        silence is significant."""
