"""Common parts of the simulated engine kinds: one port, and common launch options. It does not
import the engines, which run in separate processes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from executors.engines.engine_protocol import LaunchLine, LaunchSpec, RoleSwitch
from executors.engines.http_api import HttpApi


class SimulatedProcess(HttpApi):
    """Base of the simulated engine kinds."""

    __slots__ = ()

    @property
    def ports(self) -> int:
        """One port, for HTTP, which also carries KV."""
        return 1

    @property
    def role_switch(self) -> RoleSwitch:
        """RELAUNCH, because the phase is fixed at launch."""
        return RoleSwitch.RELAUNCH

    @property
    def stop_s(self) -> float:
        """The short time that a process needs to exit once no request is in flight."""
        return 2.0


def launch_line(
    module: str,
    spec: LaunchSpec,
    startup_s: float,
    options: Mapping[str, str],
    env: tuple[tuple[str, str], ...] = (),
) -> LaunchLine:
    """`python -m module ...` with the options of every simulated engine, and its own `options`."""
    arguments = {
        "--model": spec.model,
        "--host": spec.host,
        "--port": str(spec.port),
        "--max-len": str(spec.max_len),
        "--time-base": spec.time_base.format(),
        "--startup-s": repr(startup_s),
        "--launched-ms": str(spec.launched_ms),
        **options,
    }
    # KEY=VALUE in one word, so that a value may begin with a dash.
    words = [f"{key}={value}" for key, value in arguments.items()]
    return LaunchLine((sys.executable, "-m", module, *words), env)
