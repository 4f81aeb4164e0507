"""Compare latencies in the simulator and in the running stack, request by request.

    python -m loadtests.fidelity [--trace FILE] [--for S] [--instances N | --config FILE]
    python -m loadtests.fidelity --engine vllm [--trace FILE] [--for S]
    python -m loadtests.fidelity --url http://HOST:PORT --config FILE [--trace FILE]

The same trace is replayed three times: twice on a new real stack (broker, controller, executors,
gateway, simulated engines) at the speed of real time, and once in `autoscaler.simulation` with the
same controller and configuration. Requests are paired by their number. The simulator gets the
lengths that the server counted. Without --config the fleet is fixed: one or two instances of one
model.

With --engine vllm the engine is one real vLLM on a CPU with a small model (built once, see `make
test-vllm`): `shoal profile measure` measures it through the gateway first, and the simulator uses
that measurement. With --url, a running server replaces the stack. The configuration describes that
server (with its `measurements:`). The server's prefix cache must be off, because prompts are alike.

Exit codes: 0 both deviations are within the limit; 1 a deviation exceeds it; 2 the comparison
failed, the load was late, or the two real runs differ too much for a comparison.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

import gevent

from autoscaler.domain.validation import InvalidValue
from autoscaler.simulation.arrivals import Arrival
from autoscaler.simulation.controller_under_test import ControllerUnderTest
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.simulated_request import Ending
from autoscaler.simulation.simulator import Simulator
from loadtests.fidelity_figures import (
    MOST_BETWEEN_RUNS,
    Latency,
    Run,
    compare,
    quantiles,
    table,
)
from loadtests.fidelity_stack import (
    before_others,
    fixed_fleet,
    measure,
    on_a_core_of_its_own,
    one_vllm,
    running,
    shortened,
)
from loadtests.replay.client import Client
from loadtests.replay.report import LATE_MS
from streams.broker.embedded import EmbeddedBrokerFailed
from streams.files.user_errors import UserError
from streams.tools.backtest.backtest_demand import load_workload
from streams.tools.backtest.demand_options import Demand
from streams.tools.replay.replay_report import quantile
from streams.tools.up.real_engines import RealEngines, prepare

TRACE = Path(str(resources.files("streams").joinpath("data/azure2023_conv.csv.gz")))
_MEASURED = "measurements.json"
_ANSWER_S = 600.0
_START_S = 1.0
_VLLM_SCALE = 0.2  # Scales the trace to the load that one core serves without a queue.


@dataclass(frozen=True, slots=True)
class Played:
    """A replay. sent: requests with the lengths that the server counted.

    late_ms: p99 of the delay of sent requests. failed: number of requests without a whole answer.
    """

    run: Run
    sent: tuple[Arrival, ...]
    late_ms: float
    failed: int


def play(base: str, arrivals: Sequence[Arrival], start_s: float = _START_S) -> Played:
    """Send every request at its due time to the gateway at `base`, without waiting for earlier
    answers."""
    client = Client(base, _ANSWER_S)
    begin_s = time.monotonic() + start_s
    run: dict[int, Latency] = {}
    sent = list(arrivals)
    late_ms: list[float] = []

    def ask(number: int, arrival: Arrival) -> None:
        due_s = begin_s + arrival.at_s
        late_ms.append(1000.0 * (time.monotonic() - due_s))
        try:
            answer = client.complete(
                arrival.model, arrival.input_tokens, arrival.output_tokens, due_s
            )
        except Exception:  # After any error the request has no latency and counts as failed.
            return
        run[number] = Latency(answer.first_ms, answer.last_ms - answer.first_ms)
        sent[number] = replace(
            arrival,
            input_tokens=answer.input_tokens or arrival.input_tokens,
            output_tokens=answer.output_tokens or arrival.output_tokens,
        )

    tasks = [
        gevent.spawn_later(max(0.0, begin_s + one.at_s - time.monotonic()), ask, number, one)
        for number, one in enumerate(arrivals)
    ]
    gevent.joinall(tasks)
    return Played(run, tuple(sent), quantile(late_ms, 0.99) or 0.0, len(arrivals) - len(run))


def simulated(scenario: Scenario) -> Run:
    """Simulate the trace in virtual time."""
    run: dict[int, Latency] = {}
    for row in Simulator(scenario, ControllerUnderTest()).run().requests:
        if row.outcome == Ending.SERVED and row.first_token_s is not None and row.end_s is not None:
            prefill_s, decode_s = row.first_token_s - row.arrival_s, row.end_s - row.first_token_s
            run[row.id] = Latency(1000.0 * prefill_s, 1000.0 * decode_s)
    return run


async def _on_simulated(config: str, scenario: Scenario) -> list[Played]:
    """Replay twice on simulated engines, each time on a new stack."""
    found = []
    for _ in range(2):
        async with running(config, scenario.cluster) as base:
            found.append(await asyncio.to_thread(play, base, scenario.arrivals))
    return found


async def _on_vllm(
    config: str, scenario: Scenario, real: RealEngines, measured: Path
) -> list[Played]:
    """Replay twice on one real engine, after its measurement was written into `measured`."""
    async with running(config, scenario.cluster, real) as base:
        await asyncio.to_thread(measure, base, real.weights / "config.json", measured)
        return [await asyncio.to_thread(play, base, scenario.arrivals) for _ in range(2)]


def main(argv: list[str] | None = None) -> int:
    """Print the comparison."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.fidelity",
        description=(__doc__ or "").splitlines()[0],
    )
    add = parser.add_argument
    add("--trace", type=Path, default=TRACE, help="as `shoal backtest` takes (Azure 2023, conv)")
    add("--for", dest="for_s", type=float, default=60.0, help="seconds of it (60)")
    add("--rate-scale", type=float, help="requests per recorded one (1; 0.2 with a real vLLM)")
    add("--engine", choices=("simulated", "vllm"), default="simulated", help="(simulated)")
    add("--instances", type=int, choices=(1, 2), default=1, help="of the fixed fleet (1)")
    add("--config", type=Path, help="a shoal.yaml in place of the fixed fleet: the loop decides")
    add("--url", default="", help="a server that runs, in place of the stack; needs --config")
    add("--seed", type=int, default=1, help="of the draw of models and of --rate-scale")
    options = parser.parse_args(argv)
    if not 5.0 <= options.for_s <= 3600.0:
        parser.error(f"--for {options.for_s:g}: allowed: 5 to 3600")
    if options.rate_scale is not None and not 0.0 < options.rate_scale <= 100.0:
        parser.error(f"--rate-scale {options.rate_scale:g}: allowed: above 0, to 100")
    if options.url and not (options.config and options.url.startswith("http://")):
        parser.error(f"--url {options.url}: allowed: http://HOST:PORT, with --config")
    if options.engine == "vllm" and (options.config or options.instances != 1):
        parser.error("--engine vllm: allowed: one instance, without --config and --url")
    if options.rate_scale is None:
        options.rate_scale = _VLLM_SCALE if options.engine == "vllm" else 1.0
    logging.disable(logging.WARNING)
    try:
        return _measure(options)
    except (UserError, InvalidValue, EmbeddedBrokerFailed, OSError) as error:
        print(f"fidelity: {error}", file=sys.stderr)
        return 2


def _measure(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="shoal-fidelity-") as name:
        folder = Path(name)
        path, real = options.config or folder / "shoal.yaml", None
        if options.engine == "vllm":
            real = on_a_core_of_its_own(prepare(folder), folder)
            path.write_text(one_vllm(real.weights))
        elif options.config is None:
            path.write_text(fixed_fleet(options.instances))
        config = path.read_text(encoding="utf-8")
        demand = Demand((str(options.trace),), path, options.rate_scale, 0.0, options.for_s)
        workload = load_workload(demand, options.seed)
        scenario = workload.scenario
        before_others()
        if real is not None:
            scenario = replace(scenario, arrivals=shortened(scenario.arrivals))
            played = asyncio.run(_on_vllm(config, scenario, real, folder / _MEASURED))
            path.write_text(f"{config}measurements: {_MEASURED}\n")
            scenario = replace(scenario, cluster=load_workload(demand, 1).scenario.cluster)
        else:
            for note in workload.notes:
                print(f"note: {note}")
            if options.url:
                played = [play(options.url, scenario.arrivals) for _ in range(2)]
            else:
                played = asyncio.run(_on_simulated(config, scenario))
    for number, one in enumerate(played, start=1):
        print(
            f"real run {number}: {len(scenario.arrivals)} requests, {one.failed} failed, "
            f"sent late by {one.late_ms:.0f} ms (p99)",
            flush=True,
        )
        if one.late_ms > LATE_MS:
            print("fidelity: the load was late, its latencies mean nothing", file=sys.stderr)
            return 2
    first, second = (one.run for one in played)
    simulation = simulated(replace(scenario, arrivals=played[-1].sent))
    runs = {"real run 1": first, "real run 2": second, "simulator": simulation}
    comparisons = compare(simulation, (first, second))
    if any(math.isnan(one.simulated) for one in comparisons):
        print("fidelity: no request was answered by all three", file=sys.stderr)
        return 2
    print("\n".join(["", *table(comparisons), "", *quantiles(runs)]))
    if not all(one.judged for one in comparisons):
        print(
            f"fidelity: no verdict, two real runs lie more than {MOST_BETWEEN_RUNS:.0%} apart: "
            "the machine is too busy, or the trace too short",
            file=sys.stderr,
        )
        return 2
    return 0 if all(one.is_within_limit for one in comparisons) else 1


if __name__ == "__main__":
    sys.exit(main())
