"""Benchmark of the controller's decisions in simulation. It measures attainment, cost, reaction
times and reversals.

usage: python -m loadtests.decision_bench [--trace FILE --config FILE | --steps 1:2.5,1:10 | --gamma
3.5 | --swing 4 | --steady 1,5,20] [--seeds N] [--timeline FILE] [--json OUT] [--static] [--fluid]
[--jobs N] [--duration S] [--rate R] [--lengths TRACE] [--load L]

Without a scenario it runs the bundled trace and configuration. `loadtests.decision_figures` and
`autoscaler.simulation.run_measures` define the figures.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from autoscaler.domain.validation import InvalidValue
from autoscaler.simulation.fleet_search import FleetSearchResult, search_fleets
from loadtests.arguments import number, whole
from loadtests.decision_cases import GENERATED_CONFIG, TRACE_CONFIG, Case, prepare
from loadtests.decision_compare import TARGETS, over_seeds, report
from loadtests.decision_compare import as_json as static_json
from loadtests.decision_ideal import ideal_usd
from loadtests.decision_runs import Run, as_json, run, summary
from streams.files.output_files import refuse_unwritable
from streams.files.user_errors import UserError

BUNDLED_TRACE = TRACE_CONFIG.with_name("azure2023_conv.csv.gz")
AFTER_STEP_S = 600.0
STEADY_S = 3600.0
DAY_S = 86_400.0


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 done, 2 bad input."""
    args = _arguments().parse_args(argv)
    try:
        return _run(args)
    except (InvalidValue, UserError, OSError) as error:
        print(f"decision_bench: {error}", file=sys.stderr)
        return 2


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtests.decision_bench")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--trace", type=Path, help="a recorded trace")
    what.add_argument("--steps", type=_steps, help="rates before:after in req/s, e.g. 1:2.5,1:10")
    what.add_argument("--gamma", type=number(0.01, 100.0), help="CV of Gamma arrivals")
    what.add_argument("--swing", type=number(1.0, 1e3), help="highest by lowest rate of a day")
    what.add_argument("--steady", type=_rates, help="Poisson arrivals at these rates, e.g. 1,5,20")
    parser.add_argument("--config", type=Path, help="a shoal.yaml; one model, except with --trace")
    parser.add_argument("--seeds", type=whole(1), default=1, help="how many, from 1 on")
    parser.add_argument("--duration", type=number(1.0, 1e7), help="seconds of arrivals")
    parser.add_argument(
        "--rate", type=number(1e-3, 1e5), default=5.0, help="mean of --gamma and --swing, req/s"
    )
    parser.add_argument("--load", type=number(0.05, 1.0), default=0.75, help="of --steady")
    parser.add_argument("--lengths", type=Path, help="trace whose lengths generated requests have")
    parser.add_argument("--lead", type=number(0.0, 1e5), default=240.0, help="s before requests")
    parser.add_argument("--gateways", type=whole(1), default=1)
    parser.add_argument("--timeline", type=Path, help="JSON lines of the first run")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--static", action="store_true", help="sweep fixed fleets, per seed")
    parser.add_argument("--fluid", action="store_true", help="simulate rates, not requests: days")
    parser.add_argument("--jobs", type=whole(1), default=1, help="processes")
    return parser


def _rates(text: str) -> tuple[float, ...]:
    return tuple(number(1e-3, 1e5)(part) for part in text.split(","))


def _steps(text: str) -> tuple[tuple[float, float], ...]:
    found = []
    for part in text.split(","):
        before, colon, after = part.partition(":")
        if not colon:
            raise argparse.ArgumentTypeError(f"{part!r} is not BEFORE:AFTER in req/s, e.g. 1:2.5")
        found.append((number(1e-3, 1e5)(before), number(1e-3, 1e5)(after)))
    return tuple(found)


def cases(args: argparse.Namespace) -> list[Case]:
    """Return the scenarios that the command line selects."""
    base = partial(
        Case,
        config=args.config or (GENERATED_CONFIG if _is_generated(args) else TRACE_CONFIG),
        load=args.load,
        lead_s=args.lead,
        lengths=args.lengths,
        gateways=args.gateways,
        fluid=args.fluid,
    )
    if args.steps:
        after_s = args.duration or AFTER_STEP_S
        return [
            base(f"step {a:g} to {b:g} req/s", "steps", rates=(a, b), duration_s=after_s)
            for a, b in args.steps
        ]
    length_s = args.duration or STEADY_S
    if args.gamma:
        name = f"Gamma arrivals, CV {args.gamma:g}, {args.rate:g} req/s"
        return [base(name, "gamma", rates=(args.rate,), cv=args.gamma, duration_s=length_s)]
    if args.swing:
        name = f"a day that swings {args.swing:g}:1 around {args.rate:g} req/s"
        day_s = args.duration or DAY_S
        return [base(name, "swing", rates=(args.rate,), swing=args.swing, duration_s=day_s)]
    if args.steady:
        return [
            base(
                f"steady {rate:g} req/s at {100 * args.load:.0f}% of planned load",
                "steady",
                rates=(rate,),
                duration_s=length_s,
            )
            for rate in args.steady
        ]
    trace = args.trace or BUNDLED_TRACE
    return [base(f"trace {trace.name}", "trace", trace=trace, duration_s=args.duration or 0.0)]


def _is_generated(args: argparse.Namespace) -> bool:
    return bool(args.steps or args.gamma or args.swing or args.steady)


def _run(args: argparse.Namespace) -> int:
    if args.fluid:
        _check_fluid(args)
    for path in filter(None, (args.json, args.timeline)):
        refuse_unwritable(path)
    wanted = cases(args)
    todo = [(case, seed) for case in wanted for seed in range(1, args.seeds + 1)]
    files = [args.timeline, *[None] * (len(todo) - 1)]
    found: list[Run]
    with ProcessPoolExecutor(args.jobs) as pool:
        go = pool.map if args.jobs > 1 else map
        found = list(go(run, [c for c, _ in todo], [s for _, s in todo], files))
        fixed: list[dict[str, Any]] = []
        for case in wanted:
            mine = [one for one in found if one.scenario == case.name]
            print("\n".join(summary(mine)), flush=True)
            swept: list[tuple[Run, Sequence[FleetSearchResult]]] = []
            for ours in mine if args.static else ():
                if len(mine) > 1:
                    print(f"  seed {ours.seed}, {ours.cost_usd:.2f} USD:")
                sweeps = _sweeps(case, ours, go)
                swept.append((ours, sweeps))
                print("\n".join(report(ours, sweeps)), flush=True)
                fixed.append(static_json(ours, sweeps))
                if case.kind == "swing":
                    fixed[-1]["ideal_usd"] = ideal = ideal_usd(case, ours.seed)
                    print(
                        "  the cheapest fleet for the rate of each moment, changed at once and for "
                        f"nothing: {ideal:.2f} USD; ours {ours.cost_usd:.2f}"
                    )
            if len(swept) > 1:
                print("\n".join(over_seeds(swept)), flush=True)
    if args.json is not None:
        args.json.write_bytes(as_json(found, {"static": fixed} if fixed else None))
    return 0


def _check_fluid(args: argparse.Namespace) -> None:
    if not (args.swing or args.steady):
        raise UserError(
            "--fluid: needs --swing or --steady; rates know no bursts, nor seconds after a step, "
            "and a trace is for shoal backtest --fluid"
        )
    if args.timeline:
        raise UserError("--timeline: with --fluid there are no single requests to write")
    if args.gateways != 1:
        raise InvalidValue("--gateways", args.gateways, "1 with --fluid")


def _sweeps(case: Case, ours: Run, go: Callable[..., Iterable[Any]]) -> Sequence[FleetSearchResult]:
    return list(go(partial(_sweep, case, ours), list(ours.models)))


def _sweep(case: Case, ours: Run, model: str) -> FleetSearchResult:
    targets = (*TARGETS, ours.models[model].slo_attainment)
    prepared = prepare(case, ours.seed)
    return search_fleets(prepared.scenario, prepared.truth.lengths, model, targets, case.fluid)


if __name__ == "__main__":
    sys.exit(main())
