"""`shoal plan --verify`: the second opinion of CBC, and what happens without one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autoscaler.optimizer.array_types import Ints
from autoscaler.optimizer.milp import cost_program
from autoscaler.optimizer.problem import AllocationProblem
from autoscaler.optimizer.result import AllocationResult, SolveOptions
from autoscaler.optimizer.solve import solve
from streams.cli import plan_verify
from streams.cli.main import main
from streams.solver import plan_verification, second_solver
from streams.solver.plan_verification import Quantity, Refutation, Verdict, compared
from streams.solver.second_solver import Answer, Outcome, solved_again
from tests.property.optimizer.test_allocation_bruteforce import columns

CONFIG = """
defaults: {utilization: 0.8, max_len: 8192, capacity: predicted}
regions:
  us: {l40s: {gpu: L40S, per_node: 1, max: 20, price: 1.8}}
models:
  mini:
    source: meta-llama/Llama-3.1-8B-Instruct
    slo: {ttft: 1s, tpot: 50ms}
    min: 0
    workload: {input: 1155, output: 211, req_per_s: %s}
"""


def planned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rate: str, *more: str
) -> tuple[int, str, str]:
    path = tmp_path / "shoal.yaml"
    path.write_text(CONFIG % rate)
    code = main(["plan", "--config", str(path), "--no-explain", "--verify", *more])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_plan_is_confirmed_in_eighty_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = planned(tmp_path, capsys, "20")
    assert (code, err) == (0, "")
    assert "Second opinion" in out
    assert out.count("agrees") == 2
    assert [line for line in out.splitlines() if len(line) > 80] == []


def test_a_plan_that_leaves_demand_unserved_is_verified_in_its_fraction_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = planned(tmp_path, capsys, "20000", "--json")
    found = json.loads(out)["verification"]
    assert code == 3
    quantities = ["plan_usd_per_h", "served_fraction", "objective_usd_per_h"]
    assert [one["quantity"] for one in found] == quantities
    assert {one["verdict"] for one in found} == {Verdict.AGREES}


def test_without_demand_only_the_rent_is_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = planned(tmp_path, capsys, "0", "--json")
    (rent,) = json.loads(out)["verification"]
    assert (code, rent["plan"], rent["second"]) == (0, 0.0, 0.0)


def test_a_wrong_plan_is_an_error_with_both_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tampered solver plans for twice the demand and claims that no plan costs less."""

    def tampered(
        problem: AllocationProblem, options: SolveOptions, start: Ints | None
    ) -> AllocationResult:
        demand = 2.0 * problem.demand_req_per_s
        return solve(replace(problem, demand_req_per_s=demand), options, start)

    best = json.loads(planned(tmp_path, capsys, "20", "--json")[1])
    monkeypatch.setattr(plan_verification, "solve", tampered)
    code, out, err = planned(tmp_path, capsys, "20", "--json")
    assert code == plan_verify.FAILED_CHECK
    (wrong,) = (one for one in json.loads(out)["verification"] if one["refutation"])
    assert (wrong["refutation"], wrong["verdict"]) == ("below_bound", "disagrees")
    assert wrong["second"] == pytest.approx(best["objective_usd_per_h"])
    assert wrong["plan_bound"] > wrong["second"]
    assert f"{wrong['plan']:.6g}" in err
    assert f"{wrong['second']:.6g}" in err


def test_a_search_that_the_time_limit_ends_gives_a_bound_and_no_error() -> None:
    """An equality knapsack takes far longer than the limit; its relaxation takes no time."""
    rng = np.random.default_rng(1)
    weights = rng.integers(10_000, 20_000, 40) * 2.0
    problem = columns(
        [(float(w) + 1.0, 1.0, {0: float(w)}, {0: float(w)}) for w in weights],
        [float(weights.sum()) / 2.0 // 2 * 2 + 1.0],
        [float(weights.sum()) / 2.0 // 2 * 2 + 1.5],
    )
    found = solved_again(cost_program(problem, np.ones(1)), 1.0)
    assert found.outcome is Outcome.TIME_LIMIT
    assert found.objective is None
    assert found.bound == pytest.approx(float(weights.sum()) / 2.0, rel=1e-3)
    claim = compared(Quantity.OBJECTIVE, 1e9, found.bound, found)
    assert (claim.verdict, claim.refutation) == (Verdict.NOT_REFUTED, None)
    low = compared(Quantity.OBJECTIVE, 1.0, 1.0, found)
    assert low.refutation is Refutation.ABOVE_OBJECTIVE


def test_a_huge_program_is_not_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = columns([(1.0, 9.0, {0: 1.0}, {0: 1.0})], [4.0], [9.0])
    monkeypatch.setattr(second_solver, "MOST_ENTRIES", 1)
    found = solved_again(cost_program(problem, np.ones(1)), 5.0)
    assert found == Answer(Outcome.TOO_LARGE)
    assert compared(Quantity.OBJECTIVE, 4.0, 4.0, found).verdict is Verdict.NOT_REFUTED


def test_an_infeasible_program_contradicts_any_plan() -> None:
    problem = columns([(1.0, 9.0, {0: 1.0}, {0: 1.0})], [4.0], [3.0])
    found = solved_again(cost_program(problem, np.ones(1)), 5.0)
    assert found == Answer(Outcome.INFEASIBLE)
    claim = compared(Quantity.OBJECTIVE, 4.0, 4.0, found)
    assert claim.refutation is Refutation.INFEASIBLE


def test_options_that_cannot_be_verified_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = planned(tmp_path, capsys, "20", "--strategy", "homo")
    assert (code, out) == (2, "")
    assert "--verify: not for the baseline homo" in err
    monkeypatch.setattr(plan_verify, "is_available", lambda: False)
    code, out, err = planned(tmp_path, capsys, "20")
    assert (code, out) == (2, "")
    assert "no CBC" in err
