"""What an executor needs of an engine, whatever engine it is.

Owns the Protocol and its values. Knows no engine by name. Every engine is a process that listens
on HTTP, answers /health and /metrics, ends on SIGTERM, and is killed as a process group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from topics.timebase import TimeBase


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """Everything a launch line needs. gpu: type name; gpus: indices on the node.

    launched_ms: domain time of the launch. shutdown_timeout_s: domain s in which requests in
    flight may finish after SIGTERM.
    """

    instance: str
    model: str
    source: str
    max_len: int
    phase: str
    gpu: str
    gpus: tuple[int, ...]
    host: str
    port: int
    time_base: TimeBase
    launched_ms: int
    shutdown_timeout_s: float


@dataclass(frozen=True, slots=True)
class LaunchLine:
    """argv without a shell, and variables on top of the executor's environment."""

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine holds. in_flight: running and waiting. held_kv: KV held though idle."""

    in_flight: int
    held_kv: int


class EngineKind(Protocol):
    """One kind of engine, configured by the operator."""

    def launch_line(self, spec: LaunchSpec) -> LaunchLine:
        """How to start it."""
        ...

    def startup_s(self, spec: LaunchSpec) -> float:
        """Predicted domain seconds from launch to ready."""
        ...

    def load(self, metrics: str) -> Load:
        """What the text of its /metrics says; ValueError when it says nothing."""
        ...
