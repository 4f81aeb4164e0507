"""Engines under test: one harness for the simulated engine and for a real vLLM on a CPU.

SHOAL_TEST_VLLM names the folder of a real environment (`make test-vllm` sets it). Without it the
suite runs on simulated engines at 50 times real time. Both kinds are started with their launch
lines. A real engine takes half a minute to start, so several tests share an engine. A test that
ends an engine requests it with `last=True`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import string
import subprocess
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp

from executors.engines.engine_protocol import LaunchLine, LaunchSpec, rendezvous
from executors.engines.metrics_text import samples
from executors.engines.simulated.simulated_kind import SimulatedKind
from executors.engines.vllm import tiny_model
from executors.engines.vllm.cpu_environment import executable
from executors.engines.vllm.vllm_kind import KvTransfer, VllmKind
from executors.node.engine_environment import LaunchTag, engine_environment
from executors.node.engine_ports import EnginePorts
from executors.node.os_processes import EngineProcess, start_engine, tagged_processes
from tests.hang_limit import HANG_S
from topics.fleet import DesiredInstance
from topics.instance_ranks import GangRank, GangStage
from topics.lora_adapters import Adapter
from topics.time_base import TimeBase

HOST, MODEL = "127.0.0.1", "tiny"
KEY = "the key of engines, 32 characters".replace(" ", "-")
REAL = os.environ.get("SHOAL_TEST_VLLM", "")
_SPEED = 50.0
_READY_S = 240.0


@dataclass(frozen=True)
class EngineOptions:
    """Options of an engine. shutdown_s, lease_s: seconds of engine time, in which a simulated
    engine runs faster.
    """

    slots: int = 8
    shutdown_s: float = 0.0
    lease_s: int = 30
    policy: str = "fail"
    dev: bool = False
    key: str = ""
    adapters: tuple[str, ...] = ()
    args: tuple[str, ...] = ()


def _lasts(real_s: float) -> float:
    """`real_s` real seconds in engine time."""
    return real_s if REAL else real_s * _SPEED


# The order of the suite. The next engine starts while the previous one is in use.
ENGINES: Mapping[str, EngineOptions] = {
    "peer": EngineOptions(shutdown_s=_lasts(30.0), lease_s=10),
    "main": EngineOptions(slots=4, dev=True),
    "drained": EngineOptions(key=KEY),
    "headless": EngineOptions(),
    "spare": EngineOptions(shutdown_s=_lasts(1.0 if REAL else 0.1), policy="recompute"),
    "cut": EngineOptions(),
    "coreless": EngineOptions(),
    "adapted": EngineOptions(adapters=("legal", "sql")),
    "cached": EngineOptions(args=("--enable-prefix-caching", "--block-size=32")),
}


@dataclass
class Launched:
    """An engine as the executor starts it."""

    engine: EngineProcess
    port: int
    log: Path
    rendezvous: str = ""
    refused: bool = False
    ready: bool = False

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self.engine.child is not None
        return self.engine.child

    def tagged(self) -> list[int]:
        """Living processes of the engine, found by their tag as after a restart of the executor."""
        groups = tagged_processes(self.engine.state_dir).values()
        found = [(process.pid, tag) for group in groups for process, tag in group]
        return [pid for pid, tag in found if tag is not None and tag.launch == self.engine.launch]

    def kill(self) -> None:
        self.engine.kill()
        self.process.wait()


class Pool:
    """The engines of a test session."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports, self._used = EnginePorts(HOST), set()
        self._launched: dict[str, Launched] = {}
        self._all: list[Launched] = []
        self._begun: set[str] = set()
        self._tiny = tiny_model.write(folder / "tiny")

    def start(self, name: str) -> Launched:
        """The engine `name`. It is started if necessary."""
        if name not in self._launched:
            self._launched[name] = launched = self._launch(name, ENGINES[name])
            self._all.append(launched)
            self._begun.add(name)
        return self._launched[name]

    def take_out(self, name: str) -> None:
        """Remove an engine that its test will end. The next `start` makes a new one."""
        del self._launched[name]

    def look_ahead(self, name: str) -> None:
        """Start the engine after `name` unless it was started before."""
        names = list(ENGINES)
        if REAL and name in names[:-1]:
            after = names[names.index(name) + 1]
            if after not in self._begun:
                self.start(after)

    def start_gang(self) -> tuple[Launched, Launched]:
        """An instance of two ranks. Both were just started."""
        stage = GangStage("H100-SXM", 1, 1 if REAL else 16)
        first = GangRank("gang-0", 0, (stage, stage))
        options = EngineOptions(shutdown_s=_lasts(5.0 if REAL else HANG_S))
        leader = self._launch("gang-0", options, first)
        other = replace(first, rank=1, rendezvous=leader.rendezvous)
        ranks = leader, self._launch("gang-1", options, other)
        self._all += ranks
        return ranks

    def close(self) -> None:
        for launched in self._all:
            launched.kill()
        self._ports.close()

    def _launch(self, name: str, wanted: EngineOptions, gang: GangRank | None = None) -> Launched:
        kind = _vllm(wanted, self._folder, gang) if REAL else _simulated(wanted)
        adapters = [write_adapter(self._folder / name) for name in wanted.adapters]
        ports = self._ports.take(self._used, kind.ports + bool(gang and gang.leads))
        self._used.update(ports)
        if gang is not None and gang.leads:
            gang = replace(gang, rendezvous=rendezvous(HOST, ports))
        spec = LaunchSpec(
            model=MODEL,
            source="meta-llama/Llama-3.1-8B",
            weights=str(self._tiny),
            max_len=tiny_model.MAX_LEN if REAL else 8192,
            phase="aggregated",
            gpu="H100-SXM",
            gpus=(0,),
            host=HOST,
            advertise=HOST,
            ports=ports,
            time_base=TimeBase(1.0 if REAL else _SPEED, 1_700_000_000_000, time.monotonic_ns()),
            launched_ms=1_700_000_000_000,
            shutdown_timeout_s=wanted.shutdown_s,
            api_key=wanted.key,
            gang=gang,
            adapters=tuple(Adapter(path.name, str(path), 8) for path in adapters),
        )
        line = kind.launch_line(spec)
        extra = () if REAL else _extra(wanted)
        dev = (("VLLM_SERVER_DEV_MODE", "1"),) if wanted.dev else ()
        line = LaunchLine((*line.argv, *extra), (*line.env, *dev))
        desired = DesiredInstance(name, MODEL, spec.phase, "g", spec.gpus, gang=gang)
        tag = LaunchTag(uuid.uuid4().hex, "node", desired, ports, spec.launched_ms)
        state, log = str(self._folder), self._folder / f"{name}-{ports[0]}.log"
        environment = engine_environment(line, tag, state)
        started = start_engine(line, tag, environment, state, log, self._ports.lock_fds)
        return Launched(started, ports[0], log, gang.rendezvous if gang else "")


def _vllm(wanted: EngineOptions, weights: Path, gang: GangRank | None) -> VllmKind:
    return VllmKind(
        executable=str(executable(Path(REAL))),
        weights=(str(weights),),
        args=(*(tiny_model.ARGS if gang is None else tiny_model.PIPELINE_ARGS), *wanted.args),
        pipelines="same-slice",
        max_num_seqs=wanted.slots,
        kv_transfer=KvTransfer("cpu", wanted.policy, wanted.lease_s),
        cpu=True,
    )


def write_adapter(folder: Path) -> Path:
    """Write a LoRA adapter of the tiny model in PEFT's format: rank 8 on the queries of layer 0."""
    folder.mkdir(exist_ok=True)
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 8, "lora_alpha": 16,
        "target_modules": ["q_proj"], "bias": "none", "base_model_name_or_path": MODEL,
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))
    prefix = "base_model.model.model.layers.0.self_attn.q_proj"
    size = 8 * 256 * 4
    tensors = {
        f"{prefix}.lora_{side}.weight": {
            "dtype": "F32", "shape": shape, "data_offsets": [at * size, (at + 1) * size],
        }
        for at, (side, shape) in enumerate((("A", [8, 256]), ("B", [256, 8])))
    }  # fmt: skip
    head = json.dumps(tensors).encode()
    data = len(head).to_bytes(8, "little") + head + bytes(2 * size)
    (folder / "adapter_model.safetensors").write_bytes(data)
    return folder


def _simulated(wanted: EngineOptions) -> SimulatedKind:
    args = (*wanted.args, "--kv-cache-memory-bytes=4G") if wanted.args else ()
    return SimulatedKind(fixed_startup_s=20.0, args=args)


def _extra(wanted: EngineOptions) -> tuple[str, ...]:
    return (
        f"--max-num-seqs={wanted.slots}",
        f"--kv-load-failure-policy={wanted.policy}",
        f"--kv-lease={wanted.lease_s}",
    )


class EngineUnderTest:
    """One engine and a client of it."""

    def __init__(self, client: aiohttp.ClientSession, launched: Launched) -> None:
        self.client = client
        self.launched = launched
        self.endpoint = f"{HOST}:{launched.port}"
        self.url = f"http://{self.endpoint}"
        self.long = 3900 if REAL else 8000  # tokens that take at least a second

    @property
    def process(self) -> subprocess.Popen[bytes]:
        return self.launched.process

    async def ready(self) -> None:
        """Wait until the engine accepts connections and answers 200."""
        deadline = time.monotonic() + _READY_S
        while not self.launched.ready:
            said = self.launched.log.read_text(errors="replace")[-3000:]
            assert self.process.poll() is None, said
            assert time.monotonic() < deadline, said
            status = await self.health()
            if status == 0:
                self.launched.refused = True
                await asyncio.sleep(0.25 if REAL else 0.02)
                continue
            assert status == 200
            self.launched.ready = True

    async def health(self) -> int:
        """The HTTP status of /health; 0 if the port is closed."""
        try:
            async with self.client.get(self.url + "/health") as answer:
                return answer.status
        except (aiohttp.ClientConnectionError, OSError):
            return 0

    async def post(self, path: str = "/v1/completions", **body: object) -> tuple[int, dict]:
        async with self.client.post(self.url + path, json={"model": MODEL, **body}) as answer:
            return answer.status, await answer.json()

    async def generate(self, tokens: int, **body: object) -> tuple[int, dict]:
        """A completion of `tokens` tokens."""
        body = {"prompt": "a", "max_tokens": tokens, "ignore_eos": True, **body}
        return await self.post(**body)

    async def stream(self, path: str = "/v1/completions", **body: object) -> list[str]:
        """The data of every server-sent event of a request to `path`."""
        body = {"model": MODEL, "stream": True, "ignore_eos": True, **body}
        async with self.client.post(self.url + path, json=body) as answer:
            assert answer.status == 200
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            text = await answer.text()
        return [event.removeprefix("data: ") for event in text.split("\n\n") if event]

    async def dev(self, method: str, path: str, **query: str) -> dict:
        async with self.client.request(method, self.url + path, params=query) as answer:
            assert answer.status == 200
            return json.loads(await answer.text() or "{}")

    async def metrics(self) -> str:
        async with self.client.get(self.url + "/metrics") as answer:
            assert answer.status == 200
            return await answer.text()

    async def gauge(self, name: str) -> float:
        return sum(samples(await self.metrics(), name))

    async def until(self, name: str, low: float, high: float = float("inf")) -> None:
        """Wait until the metric `name` is in [low, high]."""
        deadline = time.monotonic() + HANG_S
        while time.monotonic() < deadline:
            if low <= await self.gauge(name) <= high:
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"{name} never between {low} and {high}")

    async def until_running(self, count: int) -> None:
        await self.until("vllm:num_requests_running", count)

    async def exit_code(self, within_s: float = HANG_S) -> int:
        return await asyncio.to_thread(self.process.wait, within_s)

    def core(self) -> int:
        """The process that generates tokens. A simulated engine has only one process."""
        if not REAL:
            return self.process.pid
        for pid in self.launched.tagged():
            with contextlib.suppress(OSError):
                if "EngineCore" in Path(f"/proc/{pid}/comm").read_text() or (
                    b"EngineCore" in Path(f"/proc/{pid}/cmdline").read_bytes()
                ):
                    return pid
        raise AssertionError("no engine core")

    def wedge(self) -> None:
        """Suspend the core of the engine. Its API server still works."""
        os.kill(self.core(), signal.SIGSTOP if REAL else signal.SIGUSR1)

    def unwedge(self) -> None:
        os.kill(self.core(), signal.SIGCONT if REAL else signal.SIGUSR2)

    async def kill_core(self) -> None:
        """Kill only the core of the engine."""
        if REAL:
            os.kill(self.core(), signal.SIGKILL)
        else:
            await self.post(prompt="a", kv_transfer_params={"do_remote_prefill": True})


def prompt(tokens: int) -> str:
    """A text of `tokens` tokens that no engine has processed before. A token is
    a byte or a word.
    """
    letters = random.choices(string.ascii_lowercase, k=tokens)
    return "".join(letters) if REAL else " ".join(letters)
