"""Comparison of the controller's run with fixed fleets: costs, and whether fleets dominate the run.

The functions compare results of simulations and format them as text or JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autoscaler.simulation.fleet_search import FleetSearchResult, SimulatedFleet
from loadtests.decision_runs import Run

TARGETS = (0.97, 0.95)


def report(ours: Run, sweeps: Sequence[FleetSearchResult]) -> list[str]:
    """Describe as text how the controller's run compares with fixed fleets."""
    lines = []
    for found in sweeps:
        for target, fleet in sorted(found.cheapest.items(), reverse=True):
            if target not in TARGETS:
                continue
            lines.append(f"  fixed, {found.model} at {100 * target:.0f}%: {_say(fleet)}")
        cut = "; search cut short, a cheaper mix may exist" if found.truncated else ""
        lines.append(f"    ({found.fleets_simulated} fleets simulated{cut})")
    for target in TARGETS:
        total = fixed_usd(sweeps, target)
        if total is not None:
            lines.append(
                f"  fixed, every model at {100 * target:.0f}%: {total:.2f} USD; ours "
                f"{ours.cost_usd:.2f} USD ({100 * (ours.cost_usd / total - 1):+.1f}%)"
                if total > 0
                else f"  fixed, every model at {100 * target:.0f}%: 0 USD"
            )
    lines.append("  " + dominance(ours, sweeps))
    return lines


def over_seeds(swept: Sequence[tuple[Run, Sequence[FleetSearchResult]]]) -> list[str]:
    """Describe as text how the controller's runs of all seeds compare with fixed fleets."""
    lines = []
    for target in TARGETS:
        pairs = [(ours.cost_usd, fixed_usd(sweeps, target)) for ours, sweeps in swept]
        known = [(ours, fixed) for ours, fixed in pairs if fixed]
        if known:
            apart = [ours / fixed - 1 for ours, fixed in known]
            whole = sum(ours for ours, _ in known) / sum(fixed for _, fixed in known) - 1
            lines.append(
                f"  fixed, every model at {100 * target:.0f}%, {len(known)} of {len(swept)} seeds: "
                f"ours {whole:+.1%} in all, {min(apart):+.1%} to {max(apart):+.1%}"
            )
    dominated = [ours.seed for ours, sweeps in swept if is_dominated(ours, sweeps)]
    which = f" ({', '.join(map(str, dominated))})" if dominated else ""
    lines.append(f"  ours is dominated in {len(dominated)} of {len(swept)} seeds{which}")
    return lines


def fixed_usd(sweeps: Sequence[FleetSearchResult], target: float) -> float | None:
    """Cost in USD of the cheapest fixed fleets that reach `target` for every model.

    None if a model has no such fleet.
    """
    fleets = [found.cheapest[target] for found in sweeps]
    if any(fleet is None for fleet in fleets):
        return None
    return sum(fleet.cost_usd for fleet in fleets if fleet is not None)


def as_good_usd(ours: Run, sweeps: Sequence[FleetSearchResult]) -> float | None:
    """Cost in USD of the cheapest fixed fleets with at least the attainment of our run for every
    model.

    None if a model has no such fleet.
    """
    total = 0.0
    for found in sweeps:
        fleet = found.cheapest.get(ours.models[found.model].slo_attainment)
        if fleet is None:
            return None
        total += fleet.cost_usd
    return total


def is_dominated(ours: Run, sweeps: Sequence[FleetSearchResult]) -> bool:
    """Whether fixed fleets with at least the attainment of `ours` for each model cost less, or cost
    no more and attain more."""
    total = as_good_usd(ours, sweeps)
    if total is None or total > ours.cost_usd:
        return False
    more = False
    for found in sweeps:
        share = ours.models[found.model].slo_attainment
        fleet = found.cheapest[share]
        more = more or (fleet is not None and fleet.attainment > share)
    return total < ours.cost_usd or more


def dominance(ours: Run, sweeps: Sequence[FleetSearchResult]) -> str:
    """Describe as text whether our run is dominated."""
    total = as_good_usd(ours, sweeps)
    if total is None:
        return "ours is not dominated: no fixed fleet attains as much for every model"
    if is_dominated(ours, sweeps):
        return f"ours is DOMINATED: fixed fleets attain as much for {total:.2f} USD"
    return f"ours is not dominated: fixed fleets that attain as much cost {total:.2f} USD"


def as_json(ours: Run, sweeps: Sequence[FleetSearchResult]) -> dict[str, Any]:
    """Return the sweep of one scenario and seed as JSON values."""
    return {
        "scenario": ours.scenario,
        "seed": ours.seed,
        "models": {
            found.model: {
                f"{target:.6f}": None
                if fleet is None
                else {
                    "counts": dict(fleet.counts),
                    "usd_per_h": fleet.usd_per_h,
                    "cost_usd": fleet.cost_usd,
                    "slo_attainment": fleet.attainment,
                }
                for target, fleet in found.cheapest.items()
            }
            for found in sweeps
        },
        "as_good_usd": as_good_usd(ours, sweeps),
        "dominated": is_dominated(ours, sweeps),
    }


def _say(fleet: SimulatedFleet | None) -> str:
    if fleet is None:
        return "none attains it"
    parts = ", ".join(f"{count} {name}" for name, count in fleet.counts)
    return (
        f"{fleet.usd_per_h:.2f} USD/h, attains {100 * fleet.attainment:.2f}%, "
        f"{fleet.cost_usd:.2f} USD in all: {parts}"
    )
