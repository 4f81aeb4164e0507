"""Compiled code made ready before anything waits for it.

Where nothing is kept on disk yet, compiling takes seconds, in which a process that was about to
lead would say nothing. Owns what is run once for that: whatever reads telemetry and looks at it
each second. What plans need is compiled where they are made, beside the ticks.
"""

from __future__ import annotations

import numpy as np

from autoscaler.demand.backlog import erlang_c
from autoscaler.demand.present import changed_at
from autoscaler.demand.significance import poisson_tail
from autoscaler.demand.windows import TelemetryWindows
from streams.ports.telemetry_wire import read_reported
from topics.codec import encode
from topics.telemetry import Telemetry

_NOW_MS = 1_700_000_000_000


def warm_up() -> None:
    """Compile it, or load it from disk. May run in a thread."""
    record = Telemetry(
        "model", "gateway", "boot", 1, _NOW_MS, 1000, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1
    )
    records, _ = read_reported([encode(record)])
    windows = TelemetryWindows()
    windows.add_all(records, np.array([_NOW_MS]))
    windows.stats("model", _NOW_MS, 60)
    changed_at(np.ones((1, 3)), 1.0)
    erlang_c(1, 0.5)
    for count in (1, 2):  # on either side of the mean
        poisson_tail(count, 1.0)
