"""The interface between a node's worker and the engines of the node.

Engines are local processes (`engine_processes`) or pods (`executors.kubernetes`). A runner makes no
decisions: the reconciler commands launches and stops, and the runner reports observations. No
method waits.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from executors.node.node_state import (
    InstanceRecord,
    Launch,
    NodeState,
    ProcessObservation,
    Rules,
    Wake,
)


class EngineRunner(Protocol):
    """The engines of one node, by instance id."""

    @property
    def fault(self) -> str:
        """A fault that does not stop serving, as text for operators; "" without one."""
        ...

    @property
    def endpoints_vary(self) -> bool:
        """Whether each engine has its own address instead of the node's address."""
        ...

    @property
    def launch_basis(self) -> str:
        """See `Status`."""
        ...

    @property
    def templates(self) -> Mapping[str, str]:
        """See `Status`."""
        ...

    def template_of(self, instance: str) -> str:
        """See `ObservedInstance`."""
        ...

    def restore(self, state: NodeState) -> tuple[NodeState, int]:
        """`state` with the engines that an earlier executor left, and their number."""
        ...

    def save(self, state: NodeState) -> bool:
        """Save `state` for the next executor. Returns False if that failed and must be repeated
        later."""
        ...

    def observe(self, records: tuple[InstanceRecord, ...]) -> Mapping[str, ProcessObservation]:
        """Observations of all instances that should have an engine."""
        ...

    def node_released(self) -> None:
        """Note that the node has no instances left."""
        ...

    def blocked_gpus(self) -> Collection[int]:
        """GPUs that engines without a record still hold."""
        ...

    def stop_ms(self, rules: Rules) -> Mapping[str, int]:
        """Longest time from Terminate to Kill per engine kind, in domain ms."""
        ...

    def launch(
        self, command: Launch, now_ms: int, used_ports: set[int]
    ) -> tuple[str, tuple[int, ...]] | None:
        """Start an engine. Returns its endpoint ("" if unknown yet) and its ports; None if the
        start failed."""
        ...

    def rename_sleeper(self, command: Wake) -> None:
        """Assign the engine of a sleeping instance to the instance that replaces it."""
        ...

    def terminate(self, instance: str) -> None:
        """Ask an engine to stop after its requests in flight."""
        ...

    def kill(self, instance: str) -> None:
        """Stop an engine at once."""
        ...

    def start_probes(self, records: tuple[InstanceRecord, ...], now_ms: int, now_s: float) -> None:
        """Start the probes that are due; a later `observe` returns their results."""
        ...

    async def close(self) -> None:
        """Stop all probes. Engines keep running."""
        ...

    def terminate_all(self) -> None:
        """Ask all engines of the node to stop."""
        ...

    def kill_all(self) -> None:
        """Stop all engines of the node at once."""
        ...

    def count_alive(self) -> int:
        """The number of engines that still run."""
        ...
