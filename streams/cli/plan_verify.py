"""`shoal plan --verify`: the second opinion on a plan, as text and as JSON."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from streams import text_layout
from streams.files.user_errors import UserError
from streams.solver.plan_verification import Comparison, Quantity, Refutation, Verdict
from streams.solver.second_solver import MOST_ENTRIES, Outcome, is_available
from streams.text_layout import section, wrapped

FAILED_CHECK = 1
"""Exit code if the second opinion disagrees."""
_QUANTITIES = {
    Quantity.PLAN_COST: "rent in USD/h, counted again",
    Quantity.OBJECTIVE: "objective in USD/h",
    Quantity.SERVED_FRACTION: "smallest served fraction",
    Quantity.MULTIPLE: "multiple of the declared work",
}
_REFUTATIONS = {
    Refutation.COUNT_DIFFERS: "the recount gives another figure",
    Refutation.ROW_BROKEN: "the plan violates a constraint of its problem",
    Refutation.BELOW_BOUND: "CBC found a better solution than the proven bound allows",
    Refutation.ABOVE_OBJECTIVE: "CBC's bound excludes this plan",
    Refutation.INFEASIBLE: "CBC proves that no solution exists",
    Refutation.NOT_BEST: "CBC found a better solution",
}
_OUTCOMES = {
    Outcome.OPTIMAL: "optimal",
    Outcome.INFEASIBLE: "infeasible",
    Outcome.TIME_LIMIT: "ended by the time limit",
    Outcome.TOO_LARGE: f"not asked: more than {MOST_ENTRIES} entries",
    Outcome.FAILED: "failed",
}


def add_argument(parser: argparse.ArgumentParser) -> None:
    """The option `--verify`."""
    parser.add_argument(
        "--verify",
        action="store_true",
        help="compare objective and bound with those of a second solver (CBC) on the same "
        "problem, and count the rent again. CBC takes up to twice --time-limit of CPU time. "
        f"Exit code {FAILED_CHECK}: they disagree",
    )


def check_option(args: argparse.Namespace) -> None:
    """UserError if `--verify` cannot be done."""
    if args.verify and args.strategy != "shoal":
        raise UserError(f"--verify: not for the baseline {args.strategy}, which proves nothing")
    if args.verify and not is_available():
        raise UserError("--verify: this installation of pulp has no CBC for this machine")


def as_json(found: Iterable[Comparison]) -> list[dict[str, Any]]:
    """The comparisons under stable keys."""
    return [
        {
            "quantity": one.quantity,
            "verdict": one.verdict,
            "refutation": one.refutation,
            "plan": one.figure,
            "plan_bound": one.bound,
            "second_outcome": one.second.outcome,
            "second": one.second.objective,
            "second_bound": one.second.bound,
        }
        for one in found
    ]


def show(found: Sequence[Comparison]) -> None:
    """Print the comparisons, if there are any."""
    words = [
        f"{_QUANTITIES[one.quantity]}: {_figures(one)}: {_VERDICTS[one.verdict]}" for one in found
    ]
    shown = section("Second opinion", [line for one in words for line in wrapped(one)])
    text_layout.show([], shown)


_VERDICTS = {
    Verdict.AGREES: "agrees",
    Verdict.NOT_REFUTED: "not refuted, not confirmed",
    Verdict.DISAGREES: "DISAGREES",
}


def exit_code(found: Iterable[Comparison]) -> int:
    """0, or FAILED_CHECK after an error line for each disagreement."""
    wrong = [one for one in found if one.refutation is not None]
    for one in wrong:
        why = _REFUTATIONS[one.refutation] if one.refutation else ""
        sys.stderr.write(f"shoal: --verify: {_QUANTITIES[one.quantity]}: {_figures(one)}: {why}\n")
    return FAILED_CHECK if wrong else 0


def _figures(one: Comparison) -> str:
    if one.quantity is Quantity.PLAN_COST:
        return f"plan {_figure(one.figure)}, recount {_figure(one.second.objective)}"
    return (
        f"plan {_figure(one.figure)}, bound {_figure(one.bound)}; CBC "
        f"{_figure(one.second.objective)}, bound {_figure(one.second.bound)} "
        f"({_OUTCOMES[one.second.outcome]})"
    )


def _figure(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"
