"""A scenario of `shoal up` that repeats a shipped one."""

from __future__ import annotations

import math
from pathlib import Path

import yaml

from streams.files.units import duration_s
from streams.tools.replay.traces import load_trace
from streams.tools.up.scenario_file import open_scenario, read_settings, scenario_path

_EDGE_S = 60.0
"""The period of a scenario is a multiple of this, so that each round has the same minutes."""


def repeated(name: str, least_s: float, folder: Path) -> Path:
    """The file of a scenario that repeats `name` for at least `least_s` domain seconds. Files of
    prices and nodes are used in the first round only."""
    settings, path = read_settings(open_scenario(name)), scenario_path(name)
    trace = load_trace(settings.trace)
    period_s = _EDGE_S * math.ceil((trace.duration_s + 1e-3) / _EDGE_S)
    rounds = math.ceil(least_s / period_s)
    models = [f"{model}," for model in trace.models] or [""] * len(trace.arrivals_ms)
    with (folder / "trace.csv").open("w") as file:
        column = "model," if trace.models else ""
        file.write(f"timestamp_ms,{column}input_tokens,output_tokens\n")
        for k in range(rounds):
            file.writelines(
                f"{at_ms + 1000.0 * period_s * k:.0f},{model}{given},{wanted}\n"
                for at_ms, model, given, wanted in zip(
                    trace.arrivals_ms, models, trace.input_tokens, trace.output_tokens, strict=True
                )
            )
    found = yaml.safe_load(path.read_text())
    found |= {
        "trace": "trace.csv",
        "config": str(settings.config.resolve()),
        "supply": list(settings.supply),
    }
    found["events"] = {
        f"{event}-{k}": values | {"at": f"{duration_s(values['at']) + period_s * k:.0f}s"}
        for event, values in found.get("events", {}).items()
        for k in range(rounds)
    }
    made = folder / "scenario.yaml"
    made.write_text(yaml.safe_dump(found, sort_keys=False))
    return made
