"""The interface between an executor and any kind of engine.

Every engine is a process, possibly with child workers, that leads its own session. The executor
gives the engine a closed environment, stops it with SIGTERM to the leader, and sends SIGKILL to all
descendants after the stop deadline.

   launch line   argv and variables for one instance on given GPUs and ports
   ready         the engine answers /health
   alive         the engine generated one token: the only proof that its core works
   load          requests and token counters, from the engine's own metrics
   switch role   by strategy: `routing` needs no change to the process, `relaunch` restarts
   sleep, wake   if declared: a sleeping engine frees its GPU memory
   drain, stop   by the executor: out of the routes, idle, SIGTERM, SIGKILL to the tree
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from topics.instance_ranks import GangRank
from topics.lora_adapters import Adapter
from topics.time_base import TimeBase

if TYPE_CHECKING:  # A simulated engine needs no HTTP client, and its import takes long.
    import aiohttp


class RoleSwitch(StrEnum):
    """How an instance changes its phase."""

    ROUTING = "routing"
    RELAUNCH = "relaunch"


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """The input of a launch line. source: the catalogue's name of the model, which determines its
    size and speed; weights: path or repository that the engine loads, "" = source. gpu: type name;
    gpus: indices on the node, which the executor also sets as CUDA_VISIBLE_DEVICES (the engine sees
    these GPUs as 0, 1, ...). host: the address on which the engine listens; advertise: its address
    for gateways and other engines. ports: consecutive port numbers, as many as the kind needs. The
    first is for HTTP; rank 0 of a gang has one more at the end, the rendezvous of the other ranks.
    gang: the rank in an instance over several nodes, with a known rendezvous; only rank 0 serves
    HTTP. launched_ms: domain time of the launch. shutdown_timeout_s: domain s for requests in
    flight after SIGTERM. api_key: required by the engine's /v1 paths, "" for none; passed in the
    environment, never in argv. Only for simulated engines: kv_gb_s: rate of KV transfer to this
    node in 1e9 bytes/s (0 = default); node_s: domain s until the machine is provisioned. adapters:
    LoRA adapters that the engine loads when it starts.
    """

    model: str
    source: str
    weights: str
    max_len: int
    phase: str
    gpu: str
    gpus: tuple[int, ...]
    host: str
    advertise: str
    ports: tuple[int, ...]
    time_base: TimeBase
    launched_ms: int
    shutdown_timeout_s: float
    api_key: str = field(default="", repr=False)
    kv_gb_s: float = 0.0
    node_s: float = 0.0
    gang: GangRank | None = None
    adapters: tuple[Adapter, ...] = ()

    @property
    def port(self) -> int:
        """The HTTP port."""
        return self.ports[0]


def rendezvous(host: str, ports: tuple[int, ...]) -> str:
    """The address of rank 0 for the other ranks of the gang. host, ports: of rank 0."""
    return f"{host}:{ports[-1]}"


API_KEY = "VLLM_API_KEY"
"""Environment variable that holds the API key for an engine's /v1 paths."""


@dataclass(frozen=True, slots=True)
class LaunchLine:
    """The command line (argv, run without a shell) and its variables, in addition to the closed
    environment of all engines."""

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Contact:
    """The address of a running engine. endpoint: "host:port". model: the name that the engine
    serves."""

    client: aiohttp.ClientSession
    endpoint: str
    model: str
    api_key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Load:
    """The load of an engine. held_kv: KV leases without a running request.

    tokens, finished: prompt and generated tokens, and finished requests, since the start of the
    engine. A growing number of tokens proves that its core works. blocks, block_tokens: blocks of
    the KV cache and tokens per block, 0 = not reported.
    """

    running: int
    waiting: int
    held_kv: int = 0
    tokens: float = 0.0
    finished: int = 0
    blocks: int = 0
    block_tokens: int = 0

    @property
    def in_flight(self) -> int:
        """Requests that were accepted and not answered yet."""
        return self.running + self.waiting


class EngineKind(Protocol):
    """One kind of engine, as the operator configured it.

    The async methods send HTTP requests; the caller sets the deadline. If an engine is unreachable
    or its answer is invalid, they return False or None and raise no exception. Kinds with vLLM's
    HTTP API inherit them from `executors.engines.http_api.HttpApi`.
    """

    @property
    def image(self) -> str:
        """The declared container image, "" for none."""
        ...

    @property
    def ports(self) -> int:
        """The number of consecutive ports of an instance."""
        ...

    @property
    def role_switch(self) -> RoleSwitch:
        """How an instance of this kind changes its phase."""
        ...

    @property
    def sleeps(self) -> bool:
        """Whether instances sleep instead of being stopped, as declared."""
        ...

    @property
    def stop_s(self) -> float:
        """Declared maximum of real s from the end of the shutdown time-out until the last process
        is gone. The executor waits longer if it has measured more."""
        ...

    def launch_line(self, spec: LaunchSpec) -> LaunchLine:
        """The command line and environment that start an instance."""
        ...

    def startup_s(self, spec: LaunchSpec) -> float:
        """Predicted domain seconds from launch to ready."""
        ...

    async def ready(self, engine: Contact) -> bool:
        """Whether the engine reports that it can serve."""
        ...

    async def alive(self, engine: Contact) -> bool:
        """Whether the engine answers a request for one token."""
        ...

    async def sleep(self, engine: Contact) -> bool:
        """Put the engine to sleep unless it sleeps. Returns whether both its own report and its
        metrics say that it sleeps."""
        ...

    async def wake(self, engine: Contact) -> bool:
        """Wake the engine if it sleeps. Returns whether the engine is awake, which does not prove
        that it generates tokens."""
        ...

    async def load(self, engine: Contact) -> Load | None:
        """The engine's load; None if the engine does not report it."""
        ...
