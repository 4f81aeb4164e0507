"""What an executor needs of an engine, whatever engine it is.

Holds the Protocol and its values. Knows no engine by name. Every engine is a process, possibly with
child workers, that leads a session of its own: the executor gives it a closed environment, stops it
with SIGTERM to the leader and, past its stop deadline, SIGKILL to everything it started.

    launch line   argv and variables for one instance on given GPUs and ports
    ready         it answers /health
    alive         it generated one token: the only proof that its core works
    load          what it holds and how far it has come, from its own metrics
    switch role   by strategy: `routing` serves any phase as it is, `relaunch` starts anew
    sleep, wake   where it is declared to: its GPU memory is free meanwhile
    drain, stop   the executor's: out of the routes, idle, SIGTERM, SIGKILL to the tree
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import aiohttp

from topics.instance_ranks import GangRank
from topics.time_base import TimeBase


class RoleSwitch(StrEnum):
    """How an instance comes to serve another phase."""

    ROUTING = "routing"
    RELAUNCH = "relaunch"


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """Everything a launch line needs.

    source: the catalogue's name of the model, which tells its size and speed; weights: what the
    engine loads, a path or a repository, "" = source. gpu: type name; gpus: indices on the node,
    which the executor also sets as CUDA_VISIBLE_DEVICES (the engine sees them as 0, 1, ...).
    host: the address to listen on; advertise: the one under which gateways and other engines reach
    it. ports: as many as the kind asks for, consecutive; the first is for HTTP; rank 0 of a gang
    has one more, its last, where the other ranks find it. gang: its place in an instance over
    several nodes, with the rendezvous known; only rank 0 serves HTTP. launched_ms: domain time of
    the launch. shutdown_timeout_s: domain s in which requests in flight may finish after SIGTERM.
    api_key: what its /v1 paths ask for, "" for none; it goes into the environment, never into argv.
    kv_gb_s, node_s: for simulated engines: how fast KV comes to this node in 1e9 bytes/s (0: as
    usual), domain s until the machine is there.
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
        """Where it answers HTTP."""
        return self.ports[0]


def rendezvous(host: str, ports: tuple[int, ...]) -> str:
    """Where the ranks of a gang find rank 0, which has these ports on `host`."""
    return f"{host}:{ports[-1]}"


API_KEY = "VLLM_API_KEY"
"""The variable in which an engine finds the key that its /v1 paths ask for."""


@dataclass(frozen=True, slots=True)
class LaunchLine:
    """argv without a shell, and variables on top of the closed environment that all engines get."""

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Contact:
    """How to reach one running engine. endpoint: "host:port". model: the name it serves."""

    client: aiohttp.ClientSession
    endpoint: str
    model: str
    api_key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine holds. held_kv: KV held though no request runs.

    tokens: prompt and generated tokens since it started; while this grows, its core works.
    """

    running: int
    waiting: int
    held_kv: int = 0
    tokens: float = 0.0

    @property
    def in_flight(self) -> int:
        """Requests that were accepted and not answered."""
        return self.running + self.waiting


class EngineKind(Protocol):
    """One kind of engine, as the operator configured it.

    The questions are asked over HTTP and answered within the caller's deadline: an engine that is
    not there or makes no sense is an answer (False, None), not an exception. Kinds with vLLM's HTTP
    API get them from `executors.engines.http_api.HttpApi`.
    """

    @property
    def image(self) -> str:
        """The container image that the operator declares for it, "" for none."""
        ...

    @property
    def ports(self) -> int:
        """How many consecutive ports an instance listens on."""
        ...

    @property
    def role_switch(self) -> RoleSwitch:
        """How an instance of this kind changes its phase."""
        ...

    @property
    def sleeps(self) -> bool:
        """Whether it is declared to sleep instead of being stopped."""
        ...

    @property
    def stop_s(self) -> float:
        """Longest real s from the end of its shutdown time-out until its last process is gone, as
        declared; the executor waits longer where it has measured more."""
        ...

    def launch_line(self, spec: LaunchSpec) -> LaunchLine:
        """How to start it."""
        ...

    def startup_s(self, spec: LaunchSpec) -> float:
        """Predicted domain seconds from launch to ready."""
        ...

    async def ready(self, engine: Contact) -> bool:
        """Whether it says that it can serve."""
        ...

    async def alive(self, engine: Contact) -> bool:
        """Whether it generates: one request for one token, answered."""
        ...

    async def sleep(self, engine: Contact) -> bool:
        """Let it sleep, if it does not; whether it does, as it says itself and shows."""
        ...

    async def wake(self, engine: Contact) -> bool:
        """Wake it, if it sleeps; whether it is awake, which does not prove that it generates."""
        ...

    async def load(self, engine: Contact) -> Load | None:
        """What it holds; None when it does not tell."""
        ...
