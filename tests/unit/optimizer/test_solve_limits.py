"""Time limits of a solve are kept within a tenth, whatever the size and the structure of the
problem.

The clock is the CPU time of this process, so other programs on the machine do not disturb the
result. HiGHS limits its wall time, which is never less than its CPU time on one thread. Kernels are
compiled before the clock starts, as the solver process and `shoal plan` do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoscaler.optimizer.array_types import Ints
from autoscaler.optimizer.decomposition import cover_search, knapsack
from autoscaler.optimizer.decomposition.compile_kernels import compile_kernels
from autoscaler.optimizer.problem import AllocationProblem
from autoscaler.optimizer.result import AllocationResult, SolveOptions, Status
from autoscaler.optimizer.solve import solve
from loadtests.allocation_files import read_instance
from loadtests.allocation_generate import generate
from loadtests.template_problem import TemplateProblem, columns_of, solve_templates

TOLERANCE = 1.1
INSTANCES = Path(__file__).parents[4] / "shared" / "data" / "instances"
KERNELS: tuple[Any, ...] = (
    knapsack.pair_prices,
    knapsack.cheapest_by_units,
    knapsack.cover,
    cover_search.enumerate_covers,
)

Solve = Callable[[SolveOptions], AllocationResult]


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    compile_kernels()


@lru_cache(maxsize=8)
def generated(
    models: int, most: int, scarcity: float | None, scale: float = 1.0
) -> TemplateProblem:
    """A generated problem of `models` models, 3 regions and 20 configurations.

    Each phase of a model has about `most` templates. The demand is multiplied by `scale`.
    """
    arrays = generate(models, 3, 20, 4, scarcity, most)
    groups = range(2 * models)
    return TemplateProblem(
        price_usd_per_h=arrays["price_usd_per_h"],
        available_nodes=arrays["available_nodes"],
        demand_req_per_s=scale * arrays["demand_req_per_s"],
        nodes=tuple(arrays[f"nodes_{k}"] for k in groups),
        throughput_req_per_s=tuple(arrays[f"throughput_{k}"] for k in groups),
        start_penalty=float(arrays["K"]),
    )


def with_rented_nodes(problem: TemplateProblem) -> AllocationProblem:
    """The same choice with nodes as separate columns that provide what instances use.

    It has no cover form, so one MIP solves it.
    """
    flat, _ = columns_of(problem)
    price = problem.price_usd_per_h.ravel()
    k = len(price)
    nodes = np.arange(1, k + 1)
    return replace(
        flat,
        cost_usd_per_h=np.concatenate([0.01 * flat.cost_usd_per_h, price]),
        upper=np.concatenate([flat.upper, problem.available_nodes.ravel().astype(float)]),
        serve_indptr=np.concatenate([flat.serve_indptr, np.full(k, flat.serve_indptr[-1])]),
        use_indptr=np.concatenate([flat.use_indptr, flat.use_indptr[-1] + nodes]),
        use_resource=np.concatenate([flat.use_resource, np.arange(k)]),
        use_amount=np.concatenate([flat.use_amount, np.full(k, -1.0)]),
        capacity=np.zeros(k),
    )


def with_two_rows_each(problem: TemplateProblem) -> AllocationProblem:
    """The same columns. Each also serves a second row, as aggregated instances do."""
    flat, _ = columns_of(problem)
    rows = len(flat.demand_req_per_s)
    other = (flat.serve_row + 1) % rows
    return replace(
        flat,
        serve_indptr=2 * flat.serve_indptr,
        serve_row=np.column_stack([flat.serve_row, other]).ravel(),
        serve_rate=np.column_stack([flat.serve_rate, 0.3 * flat.serve_rate]).ravel(),
    )


def one_of_each(problem: TemplateProblem) -> AllocationProblem:
    """The same columns, each used at most once. Each bound is a separate resource."""
    flat, _ = columns_of(problem)
    return replace(flat, upper=np.ones(flat.columns))


def templates_of(problem: TemplateProblem, running: Ints | None = None) -> Solve:
    return lambda options: solve_templates(problem, options, running).result


def columns_in(problem: AllocationProblem) -> Solve:
    return lambda options: solve(problem, options)


def running_plan(problem: TemplateProblem) -> Ints:
    return solve_templates(problem, SolveOptions(gap=0.05)).rows


def assert_kept(run: Solve, limit_s: float) -> AllocationResult:
    """Assert that a search for a proven optimum ends within the limit, with a plan."""
    begin_s = time.process_time()
    options = SolveOptions(
        gap=0.0, time_limit_s=limit_s, elapsed_s=lambda: time.process_time() - begin_s
    )
    got = run(options)
    taken_s = time.process_time() - begin_s
    assert taken_s <= TOLERANCE * limit_s, f"{taken_s:.2f} s"
    assert got.status is not Status.FAILED
    assert got.served_fraction.min() > 0.0
    return got


def cases(limit_s: float) -> dict[str, Callable[[], Solve]]:
    """Problems of every structure. Longer limits have larger problems, so most
    limits are reached.
    """
    big = limit_s > 1.0
    models, most = (6, 8000) if big else (4, 2000)

    def scarce() -> TemplateProblem:
        return generated(models, most, 0.75)

    def few(scale: float = 1.0) -> TemplateProblem:
        return generated(models, 400 if big else 100, 0.9, scale)

    def short() -> TemplateProblem:
        return generated(models, most, 0.75, 3.0)

    return {
        "ample": lambda: templates_of(generated(models, most, None)),
        "scarce": lambda: templates_of(scarce()),
        "best effort": lambda: templates_of(short()),
        "columns": lambda: columns_in(columns_of(scarce())[0]),
        "best effort in columns": lambda: columns_in(columns_of(short())[0]),
        "a bound on each column": lambda: columns_in(one_of_each(scarce())),
        "running fleet": lambda: templates_of(
            generated(models, most, 0.75, 1.05), running_plan(scarce())
        ),
        "rented nodes": lambda: columns_in(with_rented_nodes(few())),
        "rented nodes, best effort": lambda: columns_in(with_rented_nodes(few(4.0))),
        "many columns with rented nodes": lambda: columns_in(with_rented_nodes(scarce())),
        "two rows each": lambda: columns_in(with_two_rows_each(few())),
    }


@pytest.mark.parametrize("case", list(cases(1.0)))
def test_a_limit_of_one_second_is_kept(case: str) -> None:
    assert_kept(cases(1.0)[case](), 1.0)


def test_a_solve_compiles_nothing_that_was_not_compiled_ahead() -> None:
    """Kernels compile for the types of their arguments, so a solve must not use other types."""
    before = [list(kernel.signatures) for kernel in KERNELS]
    problem = generated(3, 300, 1.25)
    flat, _ = columns_of(problem)
    bounded = replace(flat, upper=np.where(np.arange(flat.columns) % 50, np.inf, 1.0))
    short = replace(bounded, demand_req_per_s=3.0 * bounded.demand_req_per_s)
    running = running_plan(problem)
    for run in (templates_of(problem, running), columns_in(bounded), columns_in(short)):
        assert_kept(run, 1.0)
    assert [list(kernel.signatures) for kernel in KERNELS] == before
    assert all(len(signatures) == 1 for signatures in before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "limit_s"),
    [
        ("scarce", 3.0),
        ("best effort", 3.0),
        ("running fleet", 3.0),
        ("rented nodes, best effort", 3.0),
    ],
)
def test_longer_limits_are_kept_too(case: str, limit_s: float) -> None:
    assert_kept(cases(limit_s)[case](), limit_s)


@pytest.mark.skipif(
    not INSTANCES.is_dir(), reason="needs the allocation instances next to the clone"
)
@pytest.mark.parametrize("scale", [1.0, 1.5])
def test_a_limit_of_one_second_is_kept_on_instances_of_half_a_million_columns(scale: float) -> None:
    for path in sorted(INSTANCES.glob("ext_scarce*.npz")):
        assert_kept(templates_of(read_instance(path, scale)), 1.0)
