"""The user's options for a run, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autoscaler.domain.workload import Demand
from streams.files.shoal_yaml import Config
from streams.tools.up.real_engines import RealEngines
from streams.tools.up.scenario_file import ScenarioEvent
from streams.tools.up.trace_facts import Traffic


@dataclass(frozen=True, slots=True)
class Wishes:
    """The options of a run. for_s: real seconds for the whole run, 0 = the whole trace.

    demands: demands from the trace's first minutes, for models without a declared rate; `config`
    includes them. real: real engines, None = simulated. operated: options of the controller.
    columns: the user's mapping of trace columns, the value of --columns. scenario: name and
    sentence of the scenario, "" = none. events: of the scenario and of --supply.
    """

    config: Config
    config_path: Path
    trace: Path
    traffic: Traffic
    speed: float
    for_s: float
    broker: str
    gateway_port: int
    seed: int
    demands: Mapping[str, Demand] = field(default_factory=dict)
    log_options: tuple[str, ...] = ()
    real: RealEngines | None = None
    operated: tuple[str, ...] = ()
    columns: str = ""
    scenario: tuple[str, str] = ("", "")
    events: tuple[ScenarioEvent, ...] = ()
