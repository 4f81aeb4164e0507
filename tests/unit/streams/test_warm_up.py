"""Code is compiled before a request or record needs it."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading

import pytest

from streams import warm_up

_TICKS = """
import gc
import numpy as np
from numba.core.dispatcher import Dispatcher
from autoscaler.decide import ControllerState, Observation, decide
from autoscaler.estimate.model_demand import observe_demand
from autoscaler.state.controller_state import Term
from loadtests.large_estate import Estate
from streams.ports.telemetry_merge import merged
from streams.ports.telemetry_wire import read_reported
from streams.warm_up import warm_up
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
state = ControllerState(Term(NOW_MS))
random = np.random.default_rng(1)
for second in range(15):
    now_ms = NOW_MS + 1000 * second
    said = [
        Telemetry(
            model, gateway, "b", second, now_ms, 1000, 5, *random.integers(0, 90, 10).tolist(),
            ttft_ms={5: 7}, input_lengths={50: 40, 60: 9}, output_lengths={40: 30}, shapes={3: 1},
        )
        for model in models
        for gateway in ("g", "h")
    ]
    records, bad = read_reported([*map(encode, said), b"{"])
    assert len(bad) == 1 and len(records) == 4
    ends_ms = np.full(4, now_ms)
    assert merged(0, (0, 3), records, ends_ms)
    estate.windows.add_all(records, ends_ms)
    demand = observe_demand(estate.windows, models, cluster.policy, now_ms)
    seen = Observation(demand=demand, statuses=estate.statuses(now_ms))
    state, _ = decide(state, seen, cluster, now_ms)
assert len(before) >= 6, before
assert compiled() == before, (compiled(), before)
"""

_PLANS = """
import gc
from numba.core.registry import CPUDispatcher
from autoscaler.domain.workload import Lengths, Demand
from autoscaler.domain.cluster import Cluster, Market, Policy, Pool, Service
from autoscaler.domain.workload import Slo
from autoscaler.performance.catalog import gpu, model
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.planning.planning_problem import make_problem
from autoscaler.planning.strategies.shoal import ShoalStrategy
from streams.warm_up import warm_plans, warm_up

def used():
    kernels = [k for k in gc.get_objects() if isinstance(k, CPUDispatcher)]
    return {(k.py_func.__qualname__, s) for k in kernels for s in k.signatures}

warm_up()
warm_plans(PIPELINES)
before = used()
pool = Pool("r", "p", gpu("H100"), 8, 8, Market.ON_DEMAND, 4.0)
architecture = model("Qwen/Qwen3-32B")
service = Service("m", architecture, Slo(2500.0, 90.0), pipelines=KIND, max_len_tokens=8192)
cluster = Cluster((pool,), (service,), Policy())
demands = {"m": Demand("m", 5.0, Lengths.expected(700.0, 90.0))}
assert ShoalStrategy().solve(make_problem(cluster, demands, default_profile())).counts()
print(sorted(name for name, _ in used() - before))
"""


def test_a_warmed_up_controller_compiles_no_more_code() -> None:
    """Reading telemetry and deciding then never pause for a compilation."""
    done = subprocess.run([sys.executable, "-c", _TICKS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_plan_needs_no_compilation_after_the_warm_up() -> None:
    """This holds for instances on one node. It holds for several nodes if services declare
    pipelines.
    """
    for pipelines, kind in ((False, "none"), (True, "any")):
        code = _PLANS.replace("PIPELINES", repr(pipelines)).replace("KIND", repr(kind))
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_a_controller_continues_if_the_warm_up_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The other part is still compiled. The log names the error once."""
    done = []

    def broken(_: bool) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(warm_up, "warm_plans", broken)
    monkeypatch.setattr(warm_up, "warm_up", lambda: done.append(1))
    with caplog.at_level(logging.INFO):
        asyncio.run(warm_up.warmed(False))
    assert done == [1]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "no space left" in caplog.text


def test_a_long_compilation_is_logged_while_it_lasts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    said = threading.Event()

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.set()

    def slow(_: bool) -> None:
        assert said.wait(10.0)

    monkeypatch.setattr(warm_up, "_LONG_S", 0.01)
    monkeypatch.setattr(warm_up, "warm_up", lambda: None)
    monkeypatch.setattr(warm_up, "warm_plans", slow)
    monkeypatch.setattr(warm_up.log, "handlers", [Heard()])
    with caplog.at_level(logging.INFO):
        asyncio.run(warm_up.warmed(False))
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert "compiling" in caplog.text
