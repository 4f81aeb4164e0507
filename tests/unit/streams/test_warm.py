"""Compiled code that is ready before anything waits for it."""

from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
import gc
import numpy as np
from numba.core.dispatcher import Dispatcher
from autoscaler.decide import ControllerState, Observation, decide
from autoscaler.demand.observed import observe
from autoscaler.demand.backlog import overload
from loadtests.estate import Estate
from streams.ports.telemetry_wire import read_reported
from streams.warm import warm_up
from streams.windows.merge import merged
from topics.codec import encode
from topics.telemetry import Telemetry

def compiled():
    kernels = [one for one in gc.get_objects() if isinstance(one, Dispatcher)]
    return {str(one): list(one.signatures) for one in kernels if one.signatures}

warm_up()
before = compiled()
NOW_MS = 1_700_000_000_000
estate = Estate(2, 60, 2, 8.0, 2)
estate.declare(2)
cluster, models = estate.cluster, ["m0", "m1"]
state = ControllerState(started_ms=NOW_MS)
random = np.random.default_rng(1)
for second in range(6):
    now_ms = NOW_MS + 1000 * second
    said = [
        Telemetry(
            model, gateway, "b", second, now_ms, 1000, 5, *random.integers(0, 90, 10).tolist(),
            ttft_ms={5: 7}, shapes={3: 1},
        )
        for model in models
        for gateway in ("g", "h")
    ]
    records, bad = read_reported([*map(encode, said), b"{"])
    assert len(bad) == 1 and len(records) == 4
    ends_ms = np.full(4, now_ms)
    assert merged(0, now_ms // 1000, records, ends_ms)
    estate.windows.add_all(records, ends_ms)
    demand = observe(estate.windows, models, cluster.policy, now_ms)
    seen = Observation(demand=demand, statuses=estate.statuses(now_ms))
    state, _ = decide(state, seen, cluster, now_ms)
assert len(before) >= 6, before
assert compiled() == before, (compiled(), before)
"""


def test_reading_telemetry_and_deciding_compile_nothing_more() -> None:
    """A controller that has warmed up never stops for it, whatever comes."""
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
