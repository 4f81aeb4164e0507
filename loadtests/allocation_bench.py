"""Solve one allocation instance; write the plan and print its cost with the proven bound.

usage: python -m loadtests.allocation_bench INSTANCE.npz --out PLAN.json [--gap G]
      [--time-limit S] [--warm PLAN.json] [--scale-demand X] [--stats]

The product's optimizer solves the instance (`loadtests.template_problem`). The measured time
includes reading, reducing and solving the instance. It excludes compilation, because a tiny
instance is solved before the clock starts. The solver runs in this process on one thread, and CPU
seconds are those of this process.
"""

from __future__ import annotations

import argparse
import math
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from autoscaler.domain.validation import InvalidValue
from autoscaler.optimizer.decomposition.compile_kernels import compile_kernels
from autoscaler.optimizer.result import SolveOptions, Status, Step
from loadtests.allocation_account import account, changes
from loadtests.allocation_files import read_instance, read_plan, write_plan
from loadtests.arguments import number
from loadtests.template_problem import TemplatePlan, solve_templates

COLD_GAP = 1e-4
"""Optimality gap without --gap."""
WARM_GAP = 0.005
"""Optimality gap without --gap if there is a running fleet."""
_TOLERANCE = 2e-9
"""Relative shortfall by rounding that still counts as full service."""


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 a plan was written, 1 no plan was found, 2 bad input."""
    args = _arguments().parse_args(argv)
    try:
        return _run(args)
    except (InvalidValue, OSError) as error:
        print(f"allocation_bench: {error}", file=sys.stderr)
        return 2


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtests.allocation_bench")
    parser.add_argument("instance", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gap", type=number(0.0, 1.0), help="stop at this proven gap")
    parser.add_argument(
        "--time-limit", type=number(0.1, 1e6), default=math.inf, help="wall-clock seconds"
    )
    parser.add_argument("--warm", type=Path, help="plan that is running now")
    parser.add_argument("--scale-demand", type=number(1e-6, 1e6), default=1.0)
    parser.add_argument("--stats", action="store_true", help="print every step of the search")
    return parser


def _run(args: argparse.Namespace) -> int:
    if not args.out.parent.is_dir():
        raise InvalidValue("--out", str(args.out), "a path in a folder that exists")
    compile_kernels()
    begin, begin_cpu = time.monotonic(), _cpu_s()
    instance = read_instance(args.instance, args.scale_demand)
    steps: list[Step] = []
    options = SolveOptions(
        gap=(WARM_GAP if args.warm else COLD_GAP) if args.gap is None else args.gap,
        time_limit_s=args.time_limit,
        elapsed_s=lambda: time.monotonic() - begin,
        on_step=steps.append,
    )
    running = None if args.warm is None else read_plan(args.warm, instance)
    plan = solve_templates(instance, options, running)
    done = plan.result
    extra: dict[str, Any] = {}
    if running is not None:
        started, stopped = changes(plan.rows, running)
        runs = int(running[:, 3].sum())
        extra = {
            "cost_if_all_started_usd_per_h": account(instance, plan.rows)[0],
            "instances_running": runs,
            "instances_started": started,
            "instances_stopped": stopped,
            "instances_changed": started + stopped,
            "fraction_replaced": stopped / max(1, runs),
        }
    extra["seconds"] = time.monotonic() - begin
    extra["cpu_seconds"] = _cpu_s() - begin_cpu
    served = account(instance, plan.rows)[1]
    demand = instance.demand_req_per_s
    missing = np.where(served < demand * (1.0 - _TOLERANCE), demand - served, 0.0)
    write_plan(args.out, plan, missing, extra)
    print(_line(args.instance.name, plan, extra))
    for step in steps if args.stats else ():
        proof = f"bound {step.bound_usd_per_h:.4f}, cost {step.cost_usd_per_h:.4f} USD/h"
        built = f"{step.columns} columns, {step.built} built"
        print(f"  {step.elapsed_s:8.2f} s  {step.name:16} {built}, {proof}")
    return 1 if done.status is Status.FAILED else 0


def _line(name: str, plan: TemplatePlan, extra: dict[str, Any]) -> str:
    """One line with the measured figures."""
    done = plan.result
    served = float(done.served_fraction.min())
    parts = [
        f"{name}: {done.status}",
        f"cost {done.cost_usd_per_h:.4f} USD/h",
        f"bound {done.lower_bound_usd_per_h:.4f}",
        f"gap {100 * done.gap:.4f}%",
        f"served >= {served:.5f} (bound {done.served_fraction_bound.min():.5f})",
        f"{int(plan.rows[:, 3].sum())} instances",
        f"{extra['cpu_seconds']:.2f} CPU s",
        f"{extra['seconds']:.2f} s",
    ]
    if "fraction_replaced" in extra:
        parts.append(
            f"of {extra['instances_running']} running {extra['instances_stopped']} stopped "
            f"({100 * extra['fraction_replaced']:.1f}%), {extra['instances_started']} started; "
            f"all new {extra['cost_if_all_started_usd_per_h']:.4f} USD/h"
        )
    if done.limits_hit:
        parts.append("limits: " + ", ".join(done.limits_hit))
    return "; ".join(parts)


def _cpu_s() -> float:
    """CPU seconds of this process and of its ended children, in microsecond steps."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


if __name__ == "__main__":
    sys.exit(main())
