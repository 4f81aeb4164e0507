"""The simulated stage kind: its configuration and its launch line. It does not import the stage,
which runs in a separate process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from executors.engines.engine_protocol import LaunchLine, LaunchSpec
from executors.engines.simulated.launch_options import SimulatedProcess, launch_line
from topics.checks import InvalidValue, number, object_fields


@dataclass(frozen=True, slots=True)
class StageKind(SimulatedProcess):
    """A simulated stage. seconds: GPU type -> components (joined by commas) -> domain s of a
    request."""

    seconds: Mapping[str, Mapping[str, float]]
    fixed_startup_s: float
    image: str = ""

    @property
    def sleeps(self) -> bool:
        """False: stages do not support sleep."""
        return False

    def launch_line(self, spec: LaunchSpec) -> LaunchLine:
        """`python -m executors.engines.simulated.stage ...`. Raises ValueError for a GPU without
        declared times."""
        if spec.gpu not in self.seconds:
            raise ValueError(f"no seconds are declared for GPU {spec.gpu}")
        options = {"--seconds": orjson.dumps(dict(self.seconds[spec.gpu])).decode()}
        module = "executors.engines.simulated.stage"
        return launch_line(module, spec, self.startup_s(spec), options)

    def startup_s(self, spec: LaunchSpec) -> float:
        """The declared start time, after the node is provisioned."""
        return spec.node_s + self.fixed_startup_s


def parse_stage(where: str, raw: Any) -> StageKind:
    """The stage that `raw` declares. Raises InvalidValue, which names the offending field."""
    item = object_fields(where, raw, ("kind", "seconds"), {"startup_s": 0.0})
    number(f"{where}.startup_s", item["startup_s"], 0.0, 86_400.0)
    if not isinstance(item["seconds"], dict):
        raise InvalidValue(f"{where}.seconds", item["seconds"], "a JSON object by GPU type")
    for gpu, by_role in item["seconds"].items():
        if not isinstance(by_role, dict):
            raise InvalidValue(f"{where}.seconds.{gpu}", by_role, "a JSON object by components")
        for runs, seconds in by_role.items():
            number(f"{where}.seconds.{gpu}.{runs}", seconds, 0.0, 86_400.0)
    return StageKind(item["seconds"], float(item["startup_s"]))
