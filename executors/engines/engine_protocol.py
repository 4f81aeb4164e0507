"""The interface between an executor and any kind of engine.

Every engine is a process, possibly with child workers, that leads its own session. The executor
gives it a closed environment, stops it with SIGTERM to the leader, and sends SIGKILL to all
descendants after the stop deadline.

   launch line   argv and variables for one instance on given GPUs and ports
   ready         it answers /health
   alive         it generated one token: the only proof that its core works
   load          its requests and token counters, from its own metrics
   switch role   by strategy: `routing` serves any phase as it is, `relaunch` restarts
   sleep, wake   if declared: its GPU memory is free while it sleeps
   drain, stop   by the executor: out of the routes, idle, SIGTERM, SIGKILL to the tree
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import aiohttp

from topics.instance_ranks import GangRank
from topics.time_base import TimeBase


class RoleSwitch(StrEnum):
    """How an instance changes its phase."""

    ROUTING = "routing"
    RELAUNCH = "relaunch"


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """The input of a launch line.

    source: the catalogue's name of the model, which determines its size and speed; weights: path or
    repository that the engine loads, "" = source. gpu: type name; gpus: indices on the node, which
    the executor also sets as CUDA_VISIBLE_DEVICES (the engine sees them as 0, 1, ...). host: the
    address to listen on; advertise: the one for gateways and other engines. ports: as many as the
    kind needs, consecutive; the first is for HTTP; rank 0 of a gang has one more at the end, the
    rendezvous of the other ranks. gang: its rank in an instance over several nodes, with a known
    rendezvous; only rank 0 serves HTTP. launched_ms: domain time of the launch. shutdown_timeout_s:
    domain s for requests in flight after SIGTERM. api_key: required by its /v1 paths, "" for none;
    it goes into the environment, never into argv. For simulated engines: kv_gb_s, the rate at which
    KV moves to this node in 1e9 bytes/s (0 = default); node_s, domain s until the machine is
    provisioned.
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

    @property
    def port(self) -> int:
        """The HTTP port."""
        return self.ports[0]


def rendezvous(host: str, ports: tuple[int, ...]) -> str:
    """The address at which the ranks of a gang find rank 0, which has these ports on `host`."""
    return f"{host}:{ports[-1]}"


API_KEY = "VLLM_API_KEY"
"""Environment variable of an engine with the API key that its /v1 paths require."""


@dataclass(frozen=True, slots=True)
class LaunchLine:
    """argv without a shell, and variables in addition to the closed environment of all engines."""

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Contact:
    """The address of a running engine. endpoint: "host:port". model: the name it serves."""

    client: aiohttp.ClientSession
    endpoint: str
    model: str
    api_key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Load:
    """The load of an engine. held_kv: KV leases without a running request.

    tokens: prompt and generated tokens since its start; a growing number proves that its core
    works.
    """

    running: int
    waiting: int
    held_kv: int = 0
    tokens: float = 0.0

    @property
    def in_flight(self) -> int:
        """Requests that were accepted and not answered yet."""
        return self.running + self.waiting


class EngineKind(Protocol):
    """One kind of engine, as the operator configured it.

    The async methods send HTTP requests and observe the caller's deadline. An engine that is
    unreachable or answers nonsense is a result (False, None), not an exception. Kinds with vLLM's
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
        """Declared longest time in real s from the end of the shutdown time-out until the last
        process is gone. The executor waits longer if it has measured more."""
        ...

    def launch_line(self, spec: LaunchSpec) -> LaunchLine:
        """The command line and environment that start it."""
        ...

    def startup_s(self, spec: LaunchSpec) -> float:
        """Predicted domain seconds from launch to ready."""
        ...

    async def ready(self, engine: Contact) -> bool:
        """Whether it reports that it can serve."""
        ...

    async def alive(self, engine: Contact) -> bool:
        """Whether it generates: it answers one request for one token."""
        ...

    async def sleep(self, engine: Contact) -> bool:
        """Put it to sleep unless it sleeps; returns whether it sleeps by its own report and its
        metrics."""
        ...

    async def wake(self, engine: Contact) -> bool:
        """Wake it if it sleeps; returns whether it is awake, which does not prove that it
        generates."""
        ...

    async def load(self, engine: Contact) -> Load | None:
        """Its load; None if it does not report it."""
        ...
