"""Builders of records as a run reads them from topics, for tests of the views."""

from __future__ import annotations

from streams.tools.up.run_state import ModelRow, Picture
from topics.records import InstanceState, ObservedInstance, Telemetry
from topics.sketch import bucket_of

NOW_MS = 1_700_000_000_000


def telemetry(model: str = "mini", sequence: int = 0, **changes: object) -> Telemetry:
    values: dict[str, object] = {
        "model": model, "gateway": "gw", "boot": "b", "sequence": sequence,
        "end_ms": NOW_MS - 1000 * sequence, "span_ms": 1000, "age_ms": 0, "arrivals": 4,
        "completions": 4, "failures": 0, "refused": 0, "attained": 3, "input_tokens_arrived": 40,
        "input_tokens": 40, "output_tokens": 40, "in_flight": 2, "route_generation": 1,
        "ttft_ms": {bucket_of(200.0): 4}, "tpot_ms": {bucket_of(20.0): 4},
    }  # fmt: skip
    return Telemetry(**(values | changes))  # type: ignore[arg-type]


def instance(
    name: str,
    state: InstanceState,
    gpus: tuple[int, ...],
    model: str = "mini",
    phase: str = "aggregated",
    restarts: int = 0,
    reason: str = "",
) -> ObservedInstance:
    return ObservedInstance(
        name, model, phase, "g:1", state, gpus,
        endpoint="127.0.0.1:1", restarts=restarts, reason=reason,
    )  # fmt: skip


def row(picture: Picture, model: str = "mini") -> ModelRow:
    return next(r for r in picture.rows(NOW_MS) if r.model == model)
