"""One account: a run, its console, its replay and its backtest have the same cost and the same
requests, for any demand, prices and lost nodes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.decide import decide
from autoscaler.estimate.window_stats import EndedRequests
from autoscaler.simulation import controller_under_test
from autoscaler.simulation.arrivals import Arrival
from autoscaler.simulation.controller_under_test import ControllerUnderTest
from autoscaler.simulation.policy_score import score
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.simulator import HEARTBEAT_MS, Simulator
from autoscaler.simulation.supply_script import NodeLost, PriceChanged, ScriptEvent
from autoscaler.simulation.what_if import DecidedTick
from autoscaler.tick.account import Account
from streams.decision_log.observation_diff import ObservationReader, ObservationWriter
from streams.tools.playback.recorded_run import RunRecorder
from streams.tools.playback.timeline_run import timeline_run
from streams.tools.up.run_state import Picture
from tests.unit.simulation.simulation_builders import OD, SPOT, cluster, service
from topics.telemetry import COUNTS, Telemetry
from topics.telemetry_columns import SEQUENCE, SPAN_MS, TelemetryBatch

EXACT = 1e-8
SECONDS = 240.0
WHERE = cluster(service(req_per_s=4.0, min_instances=1), nodes=4)
NODES = [f"{pool.replace('/', '.')}.{n}" for pool in (OD, SPOT) for n in range(3)]

arrivals = st.lists(
    st.tuples(st.floats(0.0, SECONDS), st.integers(1, 4000), st.integers(1, 300)), max_size=80
)
scripts = st.lists(
    st.one_of(
        st.builds(NodeLost, st.floats(30.0, SECONDS), st.sampled_from(NODES)),
        st.builds(
            PriceChanged,
            st.integers(1, int(SECONDS)).map(float),
            st.sampled_from([OD, SPOT]),
            st.sampled_from([0.3, 0.9, 4.0, 70.0]),  # 70 is above twenty times a declared price
        ),
    ),
    max_size=6,
)


@dataclass
class Watched:
    """A simulated run as the parts of a live system see it."""

    rng: random.Random
    picture: Picture = field(default_factory=lambda: Picture(WHERE))
    account: Account = field(default_factory=Account)
    writer: ObservationWriter = field(default_factory=ObservationWriter)
    reader: ObservationReader = field(default_factory=ObservationReader)
    replayed: RunRecorder = field(default_factory=lambda: RunRecorder("replayed"))

    def telemetry(self, batch: TelemetryBatch, end_ms: int) -> None:
        """The records of gateways, some of them twice."""
        for (model, gateway, boot), row in zip(batch.names, batch.numbers.tolist(), strict=True):
            record = Telemetry(
                model, gateway, boot, row[SEQUENCE], end_ms, row[SPAN_MS], 0, in_flight=0,
                route_generation=0, **_counts(row),
            )  # fmt: skip
            for _ in range(self.rng.choice([1, 1, 2])):
                self.picture.add(record)

    def tick(self, done: DecidedTick) -> None:
        """One tick of the controller: the console counts it, and the log records it. The run reads
        the same records in another order."""
        records: list[object] = [replace(one) for one in done.observation.statuses.values()]
        records += done.observation.prices.values()
        self.rng.shuffle(records)
        for record in records:
            self.picture.add(record)
        self.account.tick(done)
        written = orjson.loads(orjson.dumps(self.writer.write(done.observation)))
        self.replayed.tick(replace(done, observation=self.reader.read(written)))


def _counts(row: list[int]) -> dict[str, Any]:
    return dict(zip(COUNTS, row, strict=False))


@contextmanager
def watched(simulated: Simulator, seen: Watched) -> Iterator[None]:
    """Context in which `seen` sees every tick and all telemetry of the simulation."""
    count = simulated.windows.add_all

    def add_all(batch: TelemetryBatch, ends_ms: Any) -> int:
        seen.telemetry(batch, int(ends_ms[0]) if len(ends_ms) else 0)
        return count(batch, ends_ms)

    def decided(before: Any, observation: Any, where: Any, now_ms: int) -> Any:
        after, effects = decide(before, observation, where, now_ms)
        seen.tick(DecidedTick(before, after, observation, where, now_ms, effects))
        return after, effects

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulated.windows, "add_all", add_all)
        patch.setattr(controller_under_test, "decide", decided)
        yield


@settings(max_examples=12, deadline=None)
@given(arrivals, scripts, st.randoms(use_true_random=False))
def test_run_console_replay_and_backtest_agree(
    drawn: list[tuple[float, int, int]], script: list[ScriptEvent], rng: random.Random
) -> None:
    found = [Arrival(at, "mini", read, made) for at, read, made in sorted(drawn)]
    scenario = Scenario(WHERE, found, SECONDS, 0.0, tuple(script))
    simulated, seen = Simulator(scenario, ControllerUnderTest()), Watched(rng)
    with watched(simulated, seen):
        simulated.advance(SECONDS)
        usd = seen.account.totals().usd
        timeline = simulated.finish()
        simulated.events.run(simulated.events.now_ms + 3000.0)  # the last reports arrive
    console = seen.account.totals()
    assert seen.picture.usd() == pytest.approx(console.usd, abs=EXACT)
    assert seen.picture.all_requests == console.all_requests
    replay = seen.replayed.as_json()
    assert replay["usd"] == pytest.approx(console.usd, abs=EXACT)
    assert replay["attained"] == pytest.approx(console.all_requests.share or 0.0, abs=EXACT) or (
        replay["attained"] is None and not found
    )
    judged = score(timeline, scenario, {"mini": service().lengths})
    assert console.all_requests == EndedRequests(
        judged.requests, sum(one.attained for one in judged.models.values())
    )
    page = timeline_run("shoal", timeline, scenario, {"mini": service().lengths}).run
    assert page["usd"] == pytest.approx(judged.cost_usd, abs=EXACT)
    assert page["history"]["*"]["spent"][-1] == pytest.approx(judged.cost_usd, abs=EXACT)
    # The simulator knows when a node was lost, and the true price of a reading that is set aside.
    if all(getattr(one, "usd_per_node_h", 0.0) < 40.0 for one in script):
        unknown_h = (len(WHERE.pools) * 4) * HEARTBEAT_MS / 3_600_000.0
        assert usd == pytest.approx(judged.cost_usd, abs=4.0 * unknown_h)


def test_a_counter_that_starts_again_is_added() -> None:
    """Telemetry of a model is forgotten and counted from 0. No request is counted twice."""
    account = Account()
    account._since_ms = 1
    for ended in (5, 9, 3, 4):
        account._count("mini", EndedRequests(ended, ended))
    assert account.totals().requests == {"mini": EndedRequests(13, 13)}
