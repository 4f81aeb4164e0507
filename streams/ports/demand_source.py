"""Port: a source of demand, implemented by `telemetry_topic`, `demand_topic` and `promql`.

A source converts its input to telemetry records with event times, so that windows, significance
tests and the handling of missing data do not depend on the kind of source.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from topics.telemetry_columns import TelemetryBatch

Sink = Callable[[TelemetryBatch, NDArray[np.int64]], None]
"""Receives a batch of records, each with the event time in domain ms at which its span ends.

Called on the event loop.
"""


class DemandSource(Protocol):
    """A source of request counts."""

    async def replay(self, sink: Sink) -> None:
        """Pass the past of the windows to the sink. Returns when all of it is passed on."""

    async def follow(self, sink: Sink) -> None:
        """Pass new records to the sink until cancelled. Continues at the end of `replay`."""

    async def live(self) -> None:
        """Return once `follow` has passed on all records that existed when it began.

        After that, a silent gateway has no traffic or is not alive.
        """
