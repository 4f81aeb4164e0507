"""`shoal profile`: evaluate the performance model, and fit it to measurements.

The model itself is in `autoscaler.performance`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from autoscaler.performance import holdout
from autoscaler.performance.benchmark_points import MeasuredPoint
from autoscaler.performance.calibration import calibrate
from autoscaler.performance.estimate_errors import (
    ErrorSummary,
    EstimatedPoint,
    errors_by_class,
    errors_by_group,
)
from autoscaler.performance.intervals import intervals
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.performance.profile import Profile
from streams.cli import measure
from streams.files.measured_points import read_points
from streams.files.profile_files import read_profile, write_profile
from streams.files.user_errors import UserError
from streams.terminal import raw_stream
from streams.terminal_console import SafeConsole

# Model names must not be cut, so output to a pipe is as wide as they need.
_PIPE_WIDTH = 140


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `profile evaluate`, `fit`, `import` and `measure`."""
    parser = subparsers.add_parser(
        "profile", help="compare the performance model with measurements"
    )
    commands = parser.add_subparsers(dest="profile_command", required=True)
    evaluate = commands.add_parser("evaluate", help="errors of TTFT and TPOT at measured points")
    evaluate.add_argument("--points", type=Path, nargs="+", required=True, metavar="FILE")
    evaluate.add_argument("--json", action="store_true", help="print JSON, errors as fractions")
    evaluate.add_argument(
        "--profile", type=Path, metavar="FILE", help="a fitted profile (default: the packaged one)"
    )
    aside = evaluate.add_mutually_exclusive_group()
    aside.add_argument(
        "--leave-one-out",
        action="store_true",
        help="estimate each (model, GPU) from a profile fitted to all the others",
    )
    aside.add_argument(
        "--leave-model-out",
        action="store_true",
        help="the same without the model on any GPU",
    )
    aside.add_argument(
        "--holdout",
        choices=("rows", "configurations"),
        nargs="?",
        const="rows",
        help="fit to every other row (or configuration), estimate the rest",
    )
    evaluate.add_argument(
        "--fit-with",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="further points for the fit if points are set aside",
    )
    evaluate.set_defaults(run=_evaluate)
    fit = commands.add_parser("fit", help="calibrate and write a profile")
    fit.add_argument("--points", type=Path, nargs="+", required=True, metavar="FILE")
    fit.add_argument("--out", type=Path, required=True, metavar="PROFILE.json")
    fit.set_defaults(run=_fit)
    measure.add_parsers(commands)


def _read(paths: Sequence[Path]) -> tuple[list[MeasuredPoint], Counter[str]]:
    points: list[MeasuredPoint] = []
    skipped: Counter[str] = Counter()
    for path in paths:
        found = read_points(path)
        points += found.points
        skipped.update(found.skipped)
    if not points:
        reasons = "; ".join(f"{n} rows: {why}" for why, n in skipped.items())
        raise UserError(f"{', '.join(map(str, paths))}: no usable point ({reasons})")
    return points, skipped


def _evaluate(args: argparse.Namespace) -> int:
    aside = args.leave_one_out or args.leave_model_out or args.holdout
    if aside and args.profile:
        raise UserError("--profile: not together with points set aside, which fit their own")
    if args.fit_with and not aside:
        raise UserError("--fit-with: only with --leave-one-out, --leave-model-out or --holdout")
    profile = read_profile(args.profile) if args.profile else default_profile()
    points, skipped = _read(args.points)
    others = _read(args.fit_with)[0] if args.fit_with else []
    if args.leave_one_out or args.leave_model_out:
        basis = "fitted without the model on that GPU"
        if args.leave_model_out:
            basis = "fitted without the model on any GPU"
        pairs = holdout.leave_one_out(
            points, others, whole_model=args.leave_model_out, report=_progress
        )
    elif args.holdout:
        basis = f"fitted to the other half of the {args.holdout}"
        pairs = holdout.estimate_held_out_half(
            points, others, configurations=args.holdout == "configurations"
        )
    else:
        basis = _fit_text(points, profile)
        pairs = holdout.estimate_all(points, profile)
    unsure = [profile.uncertain(point.spec, point.gpu) for point, _ in pairs]
    groups, classes = errors_by_group(pairs, unsure), errors_by_class(pairs)
    if args.json:
        value = _as_json(groups, classes, skipped, profile, basis)
        value["intervals"] = [asdict(interval) for interval in intervals(pairs)]
        print(json.dumps(value, indent=1))
    else:
        _print(groups, classes, skipped, profile, basis)
        for one in intervals(pairs):
            print(
                f"{one.kind} {one.figure}: 90% of points within {one.low:.2f} to {one.high:.2f} "
                f"times the estimate; of points of models left out {one.covered:.0%} were"
            )
    return 0


def _fit(args: argparse.Namespace) -> int:
    points, skipped = _read(args.points)
    profile = calibrate(points)
    write_profile(args.out, profile)
    pairs: list[EstimatedPoint] = holdout.estimate_all(points, profile)
    unsure = [profile.uncertain(point.spec, point.gpu) for point, _ in pairs]
    _print(
        errors_by_group(pairs, unsure),
        errors_by_class(pairs),
        skipped,
        profile,
        "these points were fitted to",
    )
    print(f"wrote {args.out}")
    return 0


def _fit_text(points: Sequence[MeasuredPoint], profile: Profile) -> str:
    """The number of `points` to which the profile was fitted, as text."""
    fitted = {(source.model, source.system) for source in profile.sources}
    seen = sum((point.model, point.system) in fitted for point in points)
    return f"{seen} of {len(points)} points are of a model and system that it was fitted to"


def _progress(done: int, groups: int) -> None:
    if sys.stderr.isatty():
        raw = raw_stream(sys.stderr)  # The safe stream would escape \r.
        print(f"\rfitting {done + 1} of {groups} ", end="", file=raw, flush=True)


def _as_json(
    groups: Sequence[ErrorSummary],
    classes: Sequence[ErrorSummary],
    skipped: Counter[str],
    profile: Profile,
    basis: str,
) -> dict[str, Any]:
    return {
        "unit": "fraction",
        "basis": basis,
        "profile": profile.content_hash,
        "groups": [asdict(group) for group in groups],
        "classes": [asdict(row) for row in classes[:-1]],
        "total": asdict(classes[-1]),
        "skipped": dict(skipped),
    }


def _print(
    groups: Sequence[ErrorSummary],
    classes: Sequence[ErrorSummary],
    skipped: Counter[str],
    profile: Profile,
    basis: str,
) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("model", no_wrap=True)
    table.add_column("system", no_wrap=True)
    for name in ("points", "TTFT mean", "median", "TPOT mean", "median"):
        table.add_column(name, justify="right")
    table.add_column("")
    for row in [*groups, *classes]:
        table.add_row(
            row.model,
            row.system,
            str(row.points),
            *map(_percent, (row.ttft_mape, row.ttft_median, row.tpot_mape, row.tpot_median)),
            "uncertain" if row.uncertain else "",
        )
    console = SafeConsole(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    console.print(f"Absolute errors of estimates; {basis}.")
    console.print(table)
    for reason, rows in skipped.items():
        console.print(f"{rows} rows left out: {reason}")
    console.print(f"profile {profile.content_hash[:12]}")


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"
