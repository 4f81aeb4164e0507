"""What simulated engines have in common as processes: one port, and their common launch options.

Imports nothing of the engines themselves: those run in processes of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from executors.engines.engine_protocol import LaunchLine, LaunchSpec, RoleSwitch
from executors.engines.http_api import HttpApi


class SimulatedProcess(HttpApi):
    """Base of the kinds of simulated engines."""

    __slots__ = ()

    @property
    def ports(self) -> int:
        """HTTP, which also carries the KV of engines that have any."""
        return 1

    @property
    def role_switch(self) -> RoleSwitch:
        """What it takes for a request is given at its launch, so it starts anew."""
        return RoleSwitch.RELAUNCH

    @property
    def stop_s(self) -> float:
        """It ends as soon as nothing is in flight."""
        return 2.0


def launch_line(
    module: str,
    spec: LaunchSpec,
    startup_s: float,
    options: Mapping[str, str],
    env: tuple[tuple[str, str], ...] = (),
) -> LaunchLine:
    """`python -m module ...` with what every simulated engine is told, and its own `options`."""
    told = {
        "--model": spec.model,
        "--host": spec.host,
        "--port": str(spec.port),
        "--max-len": str(spec.max_len),
        "--time-base": spec.time_base.format(),
        "--startup-s": repr(startup_s),
        "--launched-ms": str(spec.launched_ms),
        **options,
    }
    # One word each: a value that begins with a dash stays a value.
    words = [f"{key}={value}" for key, value in told.items()]
    return LaunchLine((sys.executable, "-m", module, *words), env)
