"""A simulated stage behind the executor's Protocol: the launch line of `engines.simulated.stage`.

Imports nothing of the stage itself: that runs in a process of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from executors.engines.http_api import HttpApi
from executors.engines.protocol import LaunchLine, LaunchSpec, RoleSwitch
from topics.checks import InvalidRecord, number, object_fields


@dataclass(frozen=True, slots=True)
class StageKind(HttpApi):
    """seconds: GPU type -> components (joined by commas) -> domain s that a request takes."""

    seconds: Mapping[str, Mapping[str, float]]
    fixed_startup_s: float
    image: str = ""

    @property
    def ports(self) -> int:
        """HTTP."""
        return 1

    @property
    def role_switch(self) -> RoleSwitch:
        """It has no phases; what it runs is given at its launch."""
        return RoleSwitch.RELAUNCH

    @property
    def sleeps(self) -> bool:
        """It knows no sleep."""
        return False

    @property
    def stop_s(self) -> float:
        """It ends as soon as nothing is in flight."""
        return 2.0

    def launch_line(self, spec: LaunchSpec) -> LaunchLine:
        """`python -m executors.engines.simulated.stage ...`; ValueError for a GPU without times."""
        if spec.gpu not in self.seconds:
            raise ValueError(f"nothing is declared of it on {spec.gpu}")
        options = {
            "--model": spec.model,
            "--seconds": orjson.dumps(dict(self.seconds[spec.gpu])).decode(),
            "--host": spec.host,
            "--port": str(spec.port),
            "--max-len": str(spec.max_len),
            "--time-base": spec.time_base.format(),
            "--startup-s": repr(self.startup_s(spec)),
            "--launched-ms": str(spec.launched_ms),
        }
        words = [f"{key}={value}" for key, value in options.items()]
        return LaunchLine((sys.executable, "-m", "executors.engines.simulated.stage", *words))

    def startup_s(self, spec: LaunchSpec) -> float:
        """As declared."""
        return self.fixed_startup_s


def parse_stage(where: str, raw: Any) -> StageKind:
    """The section of a simulated stage; InvalidRecord names what is wrong with it."""
    item = object_fields(where, raw, ("kind", "seconds"), {"startup_s": 0.0})
    number(f"{where}.startup_s", item["startup_s"], 0.0, 86_400.0)
    if not isinstance(item["seconds"], dict):
        raise InvalidRecord(f"{where}.seconds", item["seconds"], "a JSON object by GPU type")
    for gpu, by_role in item["seconds"].items():
        if not isinstance(by_role, dict):
            raise InvalidRecord(f"{where}.seconds.{gpu}", by_role, "a JSON object by components")
        for runs, seconds in by_role.items():
            number(f"{where}.seconds.{gpu}.{runs}", seconds, 0.0, 86_400.0)
    return StageKind(item["seconds"], float(item["startup_s"]))
