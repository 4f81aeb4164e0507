"""The engines of a slot whose pool changed between the modes `scale` and `pods`.

Engines of the former mode keep serving until the plan replaces them. They keep the template of
their launch, which differs from the present one, so the controller rolls them out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from executors.engines.engine_protocol import LaunchLine
from executors.kubernetes.engine_pod import EnginePod
from executors.kubernetes.own_pods import Placer
from executors.kubernetes.pod_template import PodLaunch
from topics.fleet import InstanceState


class EitherMode:
    """`Placer` that starts engines by `present`, and keeps those that `former` adopts."""

    def __init__(self, present: Placer, former: Placer) -> None:
        self._present = present
        self._former = former
        self._kept: set[EnginePod] = set()

    @property
    def launch_basis(self) -> str:
        """See `Placer`."""
        return self._present.launch_basis

    def templates(self, engines: Iterable[str]) -> dict[str, str]:
        """See `Placer`."""
        return self._present.templates(engines)

    def adopt(self) -> list[EnginePod]:
        """See `Placer`. The engines of the present mode come first."""
        former = self._former.adopt()
        self._kept.update(former)
        return [*self._present.adopt(), *former]

    def start(
        self, launch: PodLaunch, line: Callable[[], LaunchLine], image: str, grace_s: int
    ) -> EnginePod:
        """See `Placer`."""
        return self._present.start(launch, line, image, grace_s)

    def stop(self, engine: EnginePod, grace_s: int) -> None:
        """See `Placer`."""
        self._of(engine).stop(engine, grace_s)

    def kill(self, engine: EnginePod) -> None:
        """See `Placer`."""
        self._of(engine).kill(engine)

    def hand_over(self, engine: EnginePod) -> bool:
        """See `Placer`."""
        return self._of(engine).hand_over(engine)

    def moves(self, engine: EnginePod) -> bool:
        """See `Placer`."""
        return self._of(engine).moves(engine)

    def release(self, engine: EnginePod, remove: bool) -> None:
        """See `Placer`."""
        self._of(engine).release(engine, remove)
        self._kept.discard(engine)

    def mark(self, engine: EnginePod, state: InstanceState, launch: PodLaunch) -> bool:
        """See `Placer`."""
        return self._of(engine).mark(engine, state, launch)

    def held_gpus(self, known: Mapping[str, EnginePod]) -> set[int] | None:
        """See `Placer`."""
        held = [one.held_gpus(known) for one in (self._present, self._former)]
        return None if None in held else {gpu for part in held if part for gpu in part}

    def _of(self, engine: EnginePod) -> Placer:
        return self._former if engine in self._kept else self._present
