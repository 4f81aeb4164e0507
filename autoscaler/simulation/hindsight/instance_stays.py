"""The instances of a fleet over time, each with its launch and its stop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from autoscaler.domain.combo import Combo
from autoscaler.optimizer.array_types import Ints
from autoscaler.simulation.hindsight.demand_spans import Span
from autoscaler.simulation.hindsight.fleet_program import (
    FleetProgram,
    Kind,
    SwitchClass,
    switch_class,
)
from autoscaler.simulation.hindsight.node_schedule import Stay


def stays_of(
    program: FleetProgram,
    counts: Ints,
    combos: Sequence[Combo],
    spans: Sequence[Span],
    lead_s: float,
) -> list[Stay]:
    """The slices of the plan, each from the launch to the stop of its instance. Of equal instances,
    the newest stops first, so that long stays share nodes."""
    known = {combo.id: combo for combo in combos}
    ready: dict[SwitchClass, Counter[int]] = {}
    sample: dict[SwitchClass, Combo] = {}
    for key, count in zip(program.keys, counts, strict=True):
        if key.kind is Kind.READY and count:
            combo = known[key.subject]
            label = switch_class(combo)
            ready.setdefault(label, Counter())[key.span] += int(count)
            slowest = max(sample.get(label, combo), combo, key=lambda c: c.start_s)
            sample[label] = slowest
    found: list[Stay] = []
    for label, by_span in ready.items():
        combo, running = sample[label], list[float]()
        for k, span in enumerate(spans):
            while len(running) > by_span[k]:
                found += _stays(combo, running.pop(), span.begin_s)
            while len(running) < by_span[k]:
                running.append(max(-lead_s, span.begin_s - combo.start_s))
        for launch_s in running:
            found += _stays(combo, launch_s, spans[-1].end_s)
    return found


def _stays(combo: Combo, launch_s: float, stop_s: float) -> list[Stay]:
    return [
        Stay(member.pool, member.gpus, launch_s, stop_s)
        for member in combo.members
        for _ in range(member.count)
    ]
