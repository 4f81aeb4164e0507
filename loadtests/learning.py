"""Measures learnt capacity: the same demand with and without gains, on engines as predicted, or
faster or slower than predicted from a time on.

usage: python -m loadtests.learning [--config FILE] [--hours H] [--seeds N] [--first SEED]
      [--speed AT_H=X,...] [--capacity cautious|predicted] [--off]

Arrivals are Poisson at the declared workload of each model, with lognormal lengths, and simulated
as rates. --speed 0=1.5,20=1: engines are 1.5 times as fast as predicted, and as predicted from hour
20 on. --off: without gains. Prints one line for each seed: cost per hour over the whole run and
over the last hour, attainment over the whole run, and over the hour after the last change of speed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np

from autoscaler.domain.cluster import Cluster, Mode, Service
from autoscaler.serving.engine_setup import EngineSetup
from autoscaler.simulation.arrivals import Arrival
from autoscaler.simulation.component_stage import AnySetup
from autoscaler.simulation.controller_under_test import ControllerUnderTest
from autoscaler.simulation.engine_setups import EngineSetups
from autoscaler.simulation.flow_engine import FlowEngine
from autoscaler.simulation.rate_simulator import RateSimulator
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.timeline import Timeline
from loadtests.arrivals import lognormal_lengths
from streams.files.shoal_yaml import load_config

CONFIG = Path(__file__).parent.parent / "deploy/examples/four-models.yaml"
_LEAD_S = 900.0
_HOUR_S = 3600.0
_CV = 0.5
_EVERY_S = 10.0
Speeds = Sequence[tuple[float, float]]
"""(hour, speed) from which engines are `speed` times as fast as predicted, by rising hour."""


class _SpeedOfEngines(EngineSetups):
    """Setups of engines at the present speed."""

    def __init__(self) -> None:
        super().__init__()
        self.speed = 1.0
        self._scaled: dict[tuple[int, float], EngineSetup] = {}

    def setup(self, cluster: Cluster, *rest: object) -> AnySetup:
        found = super().setup(cluster, *rest)  # type: ignore[arg-type]
        return self.at_speed(found) if isinstance(found, EngineSetup) else found

    def at_speed(self, predicted: EngineSetup) -> EngineSetup:
        """`predicted` at the present speed, one object for each setup."""
        key = id(predicted), self.speed
        if key not in self._scaled:
            slower = 1.0 / self.speed
            correction = predicted.times.correction.scaled(slower, slower)
            times = replace(predicted.times, correction=correction)
            self._scaled[key] = replace(predicted, times=times)
        return self._scaled[key]


def simulate(scenario: Scenario, speeds: Speeds) -> Timeline:
    """Run `scenario` on engines with `speeds`."""
    run = RateSimulator(scenario, ControllerUnderTest())
    setups = _SpeedOfEngines()
    run._setups = setups
    for hour, speed in speeds:
        if hour > 0.0:
            run.advance(scenario.lead_s + hour * _HOUR_S)
        before, setups.speed = setups.speed, speed
        for engine in run.engines.values():
            if isinstance(engine, FlowEngine):
                engine.setup = _rescaled(engine.setup, before, speed)
    run.advance(scenario.end_s)
    return run.finish()


def _rescaled(setup: EngineSetup, before: float, speed: float) -> EngineSetup:
    factor = before / speed
    times = replace(setup.times, correction=setup.times.correction.scaled(factor, factor))
    return replace(setup, times=times)


def scenario_of(cluster: Cluster, hours: float, seed: int) -> Scenario:
    """The declared workload of `cluster` for `hours`, drawn with `seed`."""
    random = np.random.default_rng(seed)
    services = tuple(replace(one, mode=Mode.ACT) for one in cluster.services)
    arrivals = [one for service in services for one in _arrivals(service, hours, random)]
    arrivals.sort(key=lambda arrival: arrival.at_s)
    own = replace(cluster, services=services)
    weights = {service.model: _EVERY_S * (service.req_per_s or 1.0) for service in services}
    return Scenario(own, arrivals, hours * _HOUR_S, _LEAD_S, weights=weights, seed=seed)


def _arrivals(service: Service, hours: float, random: np.random.Generator) -> list[Arrival]:
    """Even arrivals, each of which represents the requests of `_EVERY_S`."""
    lengths = service.lengths
    draw = lognormal_lengths(lengths.input_tokens, lengths.output_tokens, _CV)
    count = int(hours * _HOUR_S / _EVERY_S)
    return [Arrival(n * _EVERY_S, service.model, *draw(random)) for n in range(count)]


def usd_per_h(found: Timeline, from_s: float, to_s: float) -> float:
    """Mean cost of the rented nodes from `from_s` to `to_s`, in seconds of the simulation."""
    held = sum(
        node.usd_per_h * max(0.0, min(to_s, node.to_s) - max(from_s, node.from_s))
        for node in found.nodes
    )
    return held / (to_s - from_s)


def attainment(found: Timeline, from_s: float, to_s: float) -> float:
    """Share of the requests of [from_s, to_s) that attained their SLO."""
    rows = [row for row in found.flows if from_s <= row.arrival_s < to_s]
    arrived = sum(row.requests for row in rows)
    return sum(row.attained for row in rows) / arrived if arrived else 1.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns exit code 0."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.learning")
    parser.add_argument("--config", type=Path, default=CONFIG)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--speed", default="0=1")
    parser.add_argument("--capacity", choices=("cautious", "predicted"), default="cautious")
    parser.add_argument("--off", action="store_true", help="without gains")
    args = parser.parse_args(argv)
    speeds = [(float(at), float(x)) for at, x in (p.split("=") for p in args.speed.split(","))]
    cluster = load_config(args.config, Mode.ACT, cautious=args.capacity == "cautious").cluster
    off = mock.patch("autoscaler.sizing.capacity_derating.learnt_gain", lambda _: 0.0)
    print("seed usd_per_h last_hour attained after_change")
    for seed in range(args.first, args.first + args.seeds):
        made = scenario_of(cluster, args.hours, seed)
        if args.off:
            with off:
                found = simulate(made, speeds)
        else:
            found = simulate(made, speeds)
        changed_s = made.lead_s + speeds[-1][0] * _HOUR_S
        print(
            seed,
            f"{usd_per_h(found, made.lead_s, made.end_s):.2f}",
            f"{usd_per_h(found, made.end_s - _HOUR_S, made.end_s):.2f}",
            f"{attainment(found, made.lead_s, made.end_s):.4f}",
            f"{attainment(found, changed_s, changed_s + _HOUR_S):.4f}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
