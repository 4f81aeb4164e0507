"""Launch, observation, signals and adoption of engine processes, with processes that only sleep."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest

from executors.engines.engine_protocol import EngineKind, LaunchLine, LaunchSpec, Load, RoleSwitch
from executors.node.engine_ports import EnginePorts
from executors.node.engine_probes import ProbeResult, ProbeTimeouts
from executors.node.engine_processes import EngineProcesses, reach_process
from executors.node.executor_config import ExecutorConfig, ModelConfig, parse_config
from executors.node.executor_metrics import Metrics
from executors.node.instance_lifecycle import apply_observation
from executors.node.node_state import InstanceRecord, Launch, NodeState, Rules, Wake
from executors.node.os_processes import EngineProcess
from executors.node.probe_schedule import ProbeSchedule
from executors.node.state_store import StateStore
from tests.unit.executors.test_executor_config import GOOD
from topics.engine_start import EngineStart
from topics.fleet import DesiredInstance, InstanceState
from topics.instance_ranks import GangRank, GangStage

NOW = 1_700_000_000_000
STAGES = (GangStage("L4", 1, 2), GangStage("L4", 1, 2))
WISH = DesiredInstance("a", "chat", "aggregated", "g", (0,), engine="fake")


@dataclass
class FakeKind:
    """A kind whose engines run `argv`. specs: the input of each launch line."""

    argv: tuple[str, ...] = ("sleep", "1000")
    ports: int = 1
    image: str = ""
    role_switch: RoleSwitch = RoleSwitch.ROUTING
    sleeps: bool = True
    stop_s: float = 4.0

    def __post_init__(self) -> None:
        self.specs: list[LaunchSpec] = []

    def launch_line(self, spec: LaunchSpec) -> LaunchLine:
        self.specs.append(spec)
        return LaunchLine(self.argv)

    async def load(self, _: object) -> Load:
        return Load(2, 1, held_kv=4, finished=9)


class Bench:
    """Engines of one node with eight GPUs, in domain time at twice the speed."""

    def __init__(self, folder: Path, client: aiohttp.ClientSession, **changes: Any) -> None:
        self.kind = FakeKind()
        base = parse_config({**GOOD, "state_dir": str(folder)})
        self.config: ExecutorConfig = replace(
            base, engines={"fake": cast(EngineKind, self.kind)}, **changes
        )
        self.store = StateStore(folder)
        self.metrics = Metrics()
        self.probes = ProbeSchedule({}, client, reach_process("127.0.0.1"), ProbeTimeouts())
        self.node = self.config.nodes[0]
        self.engines = self.executor()

    def executor(self, provision_s: float = 0.0) -> EngineProcesses:
        """The engines as a new executor process sees them."""
        node = replace(self.node, provision_s=provision_s)
        ports = EnginePorts("127.0.0.1")
        made = (node, self.config, ports, self.store, self.probes, self.metrics)
        return EngineProcesses(*made, engine_key="key")

    def launch(self, wish: DesiredInstance = WISH, used: set[int] | None = None) -> Any:
        return self.engines.launch(Launch(wish, wish.phase), NOW, set() if used is None else used)

    def total(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"shoal_executor_{name}", labels) or 0.0


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    (tmp_path / "logs").mkdir(mode=0o700)
    async with aiohttp.ClientSession() as client:
        made = Bench(tmp_path, client)
        yield made
        made.engines.kill_all()
        while made.engines.count_alive():
            await asyncio.sleep(0.002)


def record(wish: DesiredInstance = WISH, **changes: Any) -> InstanceRecord:
    made = InstanceRecord(wish, InstanceState.STARTING, NOW, wish.phase, has_process=True)
    return replace(made, **changes)


async def ended(bench: Bench, item: InstanceRecord) -> str:
    """The reason why the process of `item` ended, once it has."""
    while True:
        seen = bench.engines.observe((item,))[item.instance]
        if not seen.alive:
            return seen.end_reason
        await asyncio.sleep(0.002)


async def test_an_engine_gets_its_model_gpus_and_ports(bench: Bench) -> None:
    used: set[int] = set()
    endpoint, ports = bench.launch(used=used)
    assert endpoint == f"127.0.0.1:{ports[0]}" and used == set(ports) and len(ports) == 1
    (spec,) = bench.kind.specs
    assert (spec.model, spec.source, spec.max_len) == ("chat", "org/model", 8192)
    assert (spec.gpu, spec.gpus, spec.phase) == ("H100-SXM", (0,), "aggregated")
    assert (spec.host, spec.advertise, spec.api_key) == ("127.0.0.1", "127.0.0.1", "key")
    assert (spec.launched_ms, spec.node_s, spec.shutdown_timeout_s) == (NOW, 0.0, 10.0)
    assert bench.total("launches_total", engine="fake") == 1.0
    assert bench.engines.observe((record(),))["a"].alive
    _, others = bench.launch(replace(WISH, instance="b"), used)
    assert not set(others) & set(ports)


@pytest.mark.parametrize(
    ("wish", "why"),
    [
        (replace(WISH, model="other"), "model other is not configured here"),
        (replace(WISH, engine="other"), "engine other is not configured here"),
        (replace(WISH, gpus=(0, 8)), "GPU 8 is assigned, but the node has 8"),
    ],
)
async def test_an_instance_that_the_node_cannot_serve_fails_with_the_reason(
    bench: Bench, wish: DesiredInstance, why: str
) -> None:
    assert bench.launch(wish) is None
    seen = bench.engines.observe((record(wish),))["a"]
    assert (seen.alive, seen.end_reason) == (False, why)
    again = bench.engines.observe((record(wish),))["a"]
    assert again.end_reason == "its process is gone", "the reason belongs to one launch"
    assert bench.total("failed_launches_total", engine=wish.engine) == 2.0
    assert bench.launch(replace(WISH, gpus=(7,))) is not None


async def test_a_scripted_fault_and_a_missing_program_fail_the_launch(bench: Bench) -> None:
    bench.engines.launch_fault = "no CUDA device"
    assert bench.launch() is None
    assert bench.engines.observe((record(),))["a"].end_reason == "no CUDA device"
    bench.engines.launch_fault = ""
    bench.kind.argv = ("/no/such/program",)
    assert bench.launch() is None
    assert "/no/such/program" in bench.engines.observe((record(),))["a"].end_reason


async def test_the_end_of_an_engine_is_reported_with_its_last_words(bench: Bench) -> None:
    bench.kind.argv = ("sh", "-c", "echo first; echo out of memory; echo; exit 3")
    bench.launch()
    assert await ended(bench, record()) == "exit code 3: out of memory"
    assert bench.total("failed_launches_total", engine="fake") == 1.0
    bench.launch()
    assert await ended(bench, record(was_ready=True)) == "exit code 3: out of memory"
    assert bench.total("failed_launches_total", engine="fake") == 1.0, "it had served"
    assert bench.engines.processes == {}


async def test_a_stop_is_measured_and_extends_the_time_before_a_kill(bench: Bench) -> None:
    """10 s for requests, and twice the longest stop or the declared time, at twice the speed."""
    assert bench.engines.stop_ms(Rules()) == {"fake": 18_000}
    assert bench.engines.stop_ms(replace(Rules(), kill_after_ms=20_000)) == {"fake": 20_000}
    bench.launch()
    bench.engines.terminate("a")
    bench.engines.terminate("nobody")
    assert await ended(bench, record(was_ready=True)) == "signal SIGTERM"
    assert bench.total("stop_seconds_count", engine="fake") == 1.0
    bench.engines._longest_stop_s["fake"] = 3.0
    assert bench.engines.stop_ms(Rules()) == {"fake": 22_000}
    bench.launch()
    bench.engines.terminate("a")
    bench.engines.kill("a")
    bench.engines.kill("nobody")
    await ended(bench, record(killed_ms=NOW))
    assert bench.total("stop_seconds_count", engine="fake") == 1.0, "a kill is no stop"


async def test_a_simulated_machine_is_provisioned_once_until_it_is_released(bench: Bench) -> None:
    bench.engines = bench.executor(provision_s=30.0)
    for later_s, node_s in ((0, 30.0), (10, 20.0), (40, 0.0)):
        wish = replace(WISH, instance=f"i{later_s}")
        bench.engines.launch(Launch(wish, "prefill"), NOW + 1000 * later_s, set())
        assert bench.kind.specs[-1].node_s == node_s
        assert bench.kind.specs[-1].phase == "prefill"
    bench.engines.node_released()
    bench.engines.launch(Launch(replace(WISH, instance="j"), "prefill"), NOW + 50_000, set())
    assert bench.kind.specs[-1].node_s == 30.0


async def test_ranks_of_a_gang_share_a_rendezvous_and_only_the_first_serves(bench: Bench) -> None:
    first = GangRank("gang", 0, STAGES)
    endpoint, ports = bench.launch(replace(WISH, gang=first))
    assert len(ports) == 2 and endpoint.endswith(f":{ports[0]}")
    told = bench.kind.specs[-1].gang
    assert told is not None and told.rendezvous == f"127.0.0.1:{ports[1]}"
    second = GangRank("gang", 1, STAGES, rendezvous=told.rendezvous)
    endpoint, ports = bench.launch(replace(WISH, instance="b", gang=second))
    assert endpoint == "" and len(ports) == 1
    assert bench.kind.specs[-1].gang == second


async def test_a_new_executor_adopts_running_engines(bench: Bench) -> None:
    """Also an engine that was started but not recorded. Provisioning is over then."""
    bench.launch()
    state = NodeState("n0", "r/p/owned", None, (record(),))
    assert bench.engines.save(state) and bench.engines.fault == ""
    bench.launch(replace(WISH, instance="b", gpus=(1,)))
    later = bench.executor(provision_s=30.0)
    found, count = later.restore(NodeState("n0", "r/p/owned"))
    assert count == 2 and {item.instance for item in found.instances} == {"a", "b"}
    assert {p.pid for p in later.processes.values()} == {
        p.pid for p in bench.engines.processes.values()
    }
    assert bench.total("orphans_total", done="adopted") == 1.0
    assert bench.total("orphans_total", done="killed") == 0.0
    later.launch(Launch(replace(WISH, instance="c", gpus=(2,)), "decode"), NOW, set())
    assert bench.kind.specs[-1].node_s == 0.0
    bench.engines.processes = later.processes


async def test_a_duplicate_is_killed_and_blocks_its_gpus_until_it_is_gone(bench: Bench) -> None:
    """Two unrecorded engines use GPU 1; the older one is adopted."""
    bench.launch(replace(WISH, gpus=(1,)))
    time.sleep(0.02)  # start times have a resolution of 10 ms
    bench.launch(replace(WISH, instance="b", gpus=(1, 3)))
    older, newer = bench.engines.processes["a"], bench.engines.processes["b"]
    later = bench.executor()
    found, count = later.restore(NodeState("n0", "r/p/owned"))
    assert count == 1 and [item.instance for item in found.instances] == ["a"]
    assert later.processes["a"].pid == older.pid
    assert later.blocked_gpus() == {1, 3}
    assert bench.total("orphans_total", done="killed") == 1.0
    while later.blocked_gpus():
        newer.poll()
        later.observe(())
        await asyncio.sleep(0.002)
    assert later.count_alive() == 1


async def test_a_woken_standby_keeps_its_process_under_the_new_name(bench: Bench) -> None:
    bench.launch()
    process = bench.engines.processes["a"]
    bench.engines.rename_sleeper(Wake("a", "b"))
    assert bench.engines.processes == {"b": process}
    bench.engines.rename_sleeper(Wake("nobody", "c"))
    assert bench.engines.processes == {"b": process}


async def test_all_engines_end_on_request(bench: Bench) -> None:
    bench.launch()
    bench.launch(replace(WISH, instance="b", gpus=(1,)))
    assert bench.engines.count_alive() == 2
    bench.engines.terminate_all()
    while bench.engines.count_alive():
        await asyncio.sleep(0.002)
    bench.engines.kill_all()
    assert await ended(bench, record()) == "signal SIGTERM"


async def test_probe_results_become_observations(bench: Bench) -> None:
    bench.launch()
    engine = bench.engines.processes["a"]
    results = bench.probes._results
    results["a"] = engine, ProbeResult(True, Load(2, 1, held_kv=4, finished=9)), NOW + 7
    seen = bench.engines.observe((record(),))["a"]
    assert (seen.healthy, seen.in_flight, seen.held_kv, seen.finished) == (True, 3, 4, 9)
    assert (seen.probed_ms, seen.asleep) == (NOW + 7, False)
    assert bench.engines.observe((record(),))["a"].healthy is None, "each result counts once"
    results["a"] = engine, ProbeResult(False), NOW
    silent = bench.engines.observe((record(),))["a"]
    assert (silent.healthy, silent.in_flight) == (False, None)
    results["a"] = object(), ProbeResult(True), NOW
    assert bench.engines.observe((record(),))["a"].healthy is None, "of an earlier engine"
    assert bench.engines.observe((record(has_process=False),)) == {}


async def test_an_engine_in_exec_is_not_reached_yet() -> None:
    reach = reach_process("10.0.0.1")
    item = record(ports=(20_001,))
    ours = EngineProcess(os.getpid(), 0, "", "", Path())
    assert reach(item, ours) == ("10.0.0.1:20001", os.environ.get("VLLM_API_KEY", ""))
    gone = EngineProcess(2**22 - 1, 0, "", "", Path())
    assert reach(item, gone) == ("10.0.0.1:20001", "")


async def test_a_model_with_weights_is_loaded_from_them(bench: Bench) -> None:
    models = {"chat": ModelConfig("org/model", 100, "/weights")}
    bench.config = replace(bench.config, models=models)
    bench.engines = bench.executor()
    bench.launch()
    assert (bench.kind.specs[-1].weights, bench.kind.specs[-1].source) == ("/weights", "org/model")


STATES = "Available KV cache memory: 2.00 GiB\nGPU KV cache size: 300,000 tokens\nMaximum \
concurrency for 100,000 tokens per request: 3.00x"
REFUSES = "Available KV cache memory: -1.00 GiB\nNo available memory for the cache blocks."


def answers(bench: Bench, result: ProbeResult) -> None:
    """Put the result of a probe of instance "a" into the schedule."""
    bench.probes._results["a"] = bench.engines.processes["a"], result, NOW


async def test_a_ready_engine_reports_its_memory_from_its_log_and_its_metrics(bench: Bench) -> None:
    bench.kind.argv = ("sh", "-c", f'echo "{STATES}"; sleep 1000')
    bench.launch()
    log = bench.engines.processes["a"].log
    while "concurrency" not in log.read_text():
        await asyncio.sleep(0.002)
    item = record()
    answers(bench, ProbeResult(None))
    assert bench.engines.observe((item,))["a"].start is None
    answers(bench, ProbeResult(True))
    start = bench.engines.observe((item,))["a"].start
    expected = EngineStart(2 * 2**30, 300_000, 100_000, max_len=100_000)
    assert start == expected
    # Later probes read no log, and add the blocks of the metrics.
    log.unlink()
    ready = replace(item, state=InstanceState.READY, start=start)
    answers(bench, ProbeResult(True, Load(0, 0, blocks=18_750, block_tokens=16)))
    start = bench.engines.observe((ready,))["a"].start
    assert start == replace(expected, blocks=18_750, block_tokens=16)


@pytest.mark.parametrize(
    ("log", "refused", "hopeless"),
    [
        (REFUSES, "no_kv_memory", True),
        ("RuntimeError: CUDA error", None, False),
        (STATES, None, False),
    ],
)
async def test_a_start_refused_for_memory_is_reported_and_not_repeated(
    bench: Bench, log: str, refused: str | None, hopeless: bool
) -> None:
    bench.kind.argv = ("sh", "-c", f'echo "{log}"; exit 1')
    bench.launch()
    item = record()
    while (seen := bench.engines.observe((item,))["a"]).alive:
        await asyncio.sleep(0.002)
    assert (seen.start.refused if seen.start else None, seen.hopeless) == (refused, hopeless)
    after = apply_observation(item, seen, NOW, Rules())
    assert after.start == seen.start
    assert (after.state is InstanceState.FAILED) is hopeless


async def test_a_node_refuses_a_version_whose_model_its_file_does_not_declare(
    bench: Bench,
) -> None:
    models = {"chat": ModelConfig("org/model", 8192, digest="new")}
    bench.config = replace(bench.config, models=models)
    bench.engines = bench.executor()
    assert bench.launch(replace(WISH, version="e-old")) is None
    why = await ended(bench, record())
    assert why == "chat is configured here with another source, weights, adapters or max_len"
    for version in ("", "e-new", "other-new"):
        assert bench.launch(replace(WISH, version=version)) is not None
