"""The most work for a budget, compared with the paper's example, a brute force, and the paper's
search.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from autoscaler.optimizer import activity_lp
from autoscaler.optimizer.activity_lp import (
    Cheapest,
    Mix,
    MixProblem,
    Unfound,
    alone,
    least_cost,
    most_work,
    work_of,
)
from autoscaler.planning.plan import BudgetWork
from loadtests.experiments.mixes import even_fractions, makespan_by_bisection, restricted
from streams.cli.plan_budget import how_far


def one_each(rates: np.ndarray, **rest: object) -> MixProblem:
    """A problem in which each activity uses one configuration."""
    busy, type_of, _ = alone(rates)
    return MixProblem(busy=busy, type_of=type_of, **rest)  # type: ignore[arg-type]


def proportional_fractions(problem: MixProblem, copies: np.ndarray) -> np.ndarray:
    """Fractions that spread each type over the copies in proportion to their rates for it
    (Demystifying sec. 4.2, cases 1 and 2).
    """
    weight = (copies @ (problem.busy > 0.0)) / problem.busy.max(axis=0)
    total = np.bincount(problem.type_of, weights=weight)
    return np.asarray(weight / total[problem.type_of])


def table(problem: MixProblem, fractions: np.ndarray) -> np.ndarray:
    """Fractions per activity as (configuration, type)."""
    made = np.zeros((len(problem.busy), len(problem.work)))
    made[problem.busy.argmax(axis=0), problem.type_of] = fractions
    return made


# Demystifying sec. 4.2 and App. C: one GPU of t1, t2, t3, and two t2 with tensor parallelism.
EXAMPLE = one_each(
    rates=np.array([[1.0, 1.2], [0.9, 0.9], [0.3, 0.5], [2.4, 1.5]]),
    work=np.array([80.0, 20.0]),
    usage=np.array([[1, 0, 0, 0], [0, 1, 0, 2], [0, 0, 1, 0]], dtype=float),
    node_gpus=np.ones(3),
    node_usd_per_h=np.array([4.0, 2.0, 2.0]),
    node_max=np.full(3, 2.0),
    budget_usd_per_h=8.0,
)


@pytest.mark.parametrize(
    ("copies", "makespan_s"), [([1, 1, 1, 0], 44.05), ([1, 2, 0, 0], 35.24), ([1, 0, 0, 1], 30.94)]
)
def test_cases_1_and_2_of_the_worked_example(copies: list[int], makespan_s: float) -> None:
    """Requests are spread in proportion to speed. The paper states 44.05, 35.24 and 30.94 s."""
    counts = np.array(copies)
    mix = work_of(EXAMPLE, counts, proportional_fractions(EXAMPLE, counts))
    assert mix is not None
    assert 1.0 / mix.multiple == pytest.approx(makespan_s, abs=0.0075)


def test_case_3_of_the_worked_example_has_an_exact_optimum() -> None:
    """The paper rounds its fractions to 15% and 85% and states 28.67 s. The exact fraction 5/34
    gives 28.4314 s.
    """
    mix = most_work(EXAMPLE)
    assert isinstance(mix, Mix)
    assert mix.solved
    assert mix.copies.tolist() == [1, 0, 0, 1]
    assert 1.0 / mix.multiple == pytest.approx(1450.0 / 51.0, rel=1e-9)
    assert table(EXAMPLE, mix.fractions)[0].tolist() == pytest.approx([5.0 / 34.0, 1.0])
    assert mix.usd_per_h == 8.0
    # Activities: t1, t2, t3 and the pair of t2, each with the first and the second type.
    rounded = work_of(EXAMPLE, mix.copies, np.array([0.15, 1.0, 0, 0, 0, 0, 0.85, 0.0]))
    assert rounded is not None
    assert 1.0 / rounded.multiple == pytest.approx(28.67, abs=0.005)


@pytest.mark.parametrize("seed", range(25))
def test_the_answer_equals_that_of_brute_force_and_of_the_papers_search(seed: int) -> None:
    """The brute force tries all counts of copies. For each it finds the best assignment with a
    linear program.
    """
    problem = _random(seed)
    best = 0.0
    for counts in product(range(5), repeat=3):
        copies = np.array(counts)
        nodes = np.ceil(problem.usage @ copies / problem.node_gpus - 1e-9)
        affordable = nodes @ problem.node_usd_per_h <= problem.budget_usd_per_h + 1e-9
        if affordable and np.all(nodes <= problem.node_max):
            mix = work_of(problem, copies)
            best = max(best, mix.multiple if mix else 0.0)
    got = most_work(problem, gap=1e-9)
    if best <= 1e-12:
        assert got is Unfound.IMPOSSIBLE
        return
    assert isinstance(got, Mix)
    assert got.multiple == pytest.approx(best, rel=1e-6)
    assert got.bound is not None and got.bound >= got.multiple
    search = makespan_by_bisection(problem, tolerance=1e-4 / best, seconds=60.0)
    assert search is not None
    assert search[0] == pytest.approx(1.0 / best, rel=2e-4)
    assert got.usd_per_h <= problem.budget_usd_per_h + 1e-9
    assert table(problem, got.fractions).sum(axis=0) == pytest.approx(np.ones(len(problem.work)))


def test_a_search_stopped_by_a_limit_does_not_call_a_makespan_impossible() -> None:
    assert makespan_by_bisection(EXAMPLE, tolerance=1e-3, seconds=0.0) is None


def test_a_search_stopped_by_time_does_not_report_that_no_plan_exists() -> None:
    assert most_work(EXAMPLE, seconds=0.0) is Unfound.LIMIT
    assert least_cost(EXAMPLE, seconds=0.0) is Unfound.LIMIT
    assert most_work(replace(EXAMPLE, budget_usd_per_h=1.0)) is Unfound.IMPOSSIBLE


def test_an_unknown_bound_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that ends before its first relaxation has a plan but no bound."""
    run = activity_lp._Form._run

    def unbounded(*asked: object) -> object:
        values, _, _ = run(*asked)  # type: ignore[arg-type,misc]
        return values, -np.inf, False

    monkeypatch.setattr(activity_lp._Form, "_run", unbounded)
    mix = most_work(EXAMPLE)
    assert isinstance(mix, Mix) and not mix.solved
    assert mix.bound is None
    cheapest = least_cost(EXAMPLE, mix.multiple * 0.9)
    assert isinstance(cheapest, Cheapest) and cheapest.bound_usd_per_h == 0.0
    assert BudgetWork(mix.multiple, mix.bound, ()).gap is None
    assert how_far(None) != how_far(0.0)


def test_the_cheapest_of_equally_good_plans_is_chosen() -> None:
    """The same GPU is offered at two prices."""
    problem = one_each(
        rates=np.array([[1.0, 1.0], [1.0, 1.0]]),
        work=np.array([80.0, 20.0]),
        usage=np.eye(2),
        node_gpus=np.ones(2),
        node_usd_per_h=np.array([5.0, 1.0]),
        node_max=np.array([1.0, 1.0]),
        budget_usd_per_h=5.0,
    )
    mix = most_work(problem)
    assert isinstance(mix, Mix)
    assert mix.copies.tolist() == [0, 1]


def test_the_cheapest_plan_for_a_rate_and_the_best_for_its_cost_agree() -> None:
    """8 USD/h achieve a rate, and the cheapest plan for that rate costs 8 USD/h."""
    best = most_work(EXAMPLE)
    assert isinstance(best, Mix)
    free = replace(EXAMPLE, budget_usd_per_h=np.inf)
    found = least_cost(free, best.multiple * (1.0 - 1e-9))
    assert isinstance(found, Cheapest)
    assert found.mix.usd_per_h == 8.0
    assert found.bound_usd_per_h == pytest.approx(8.0)
    assert least_cost(EXAMPLE, best.multiple * 1.01) is Unfound.IMPOSSIBLE


def test_round_robin_does_less_than_assignment_by_type() -> None:
    """This compares the two in the worked example."""
    copies = np.array([1, 0, 0, 1])
    best, even = work_of(EXAMPLE, copies), work_of(EXAMPLE, copies, even_fractions(EXAMPLE, copies))
    assert best is not None
    assert even is not None
    assert even.multiple < 0.8 * best.multiple


def test_a_type_that_no_configuration_serves_has_no_plan() -> None:
    """The error names the type."""
    problem = restricted(EXAMPLE, np.flatnonzero(EXAMPLE.type_of == 0))
    assert problem.unserved.tolist() == [1]
    assert most_work(problem) is Unfound.IMPOSSIBLE


def test_a_share_limits_the_work_of_some_configurations() -> None:
    """At most 30% of all work may run on t1. Other configurations do the rest within the budget."""
    mask = (EXAMPLE.busy[:1] > 0.0).astype(float)
    problem = replace(
        EXAMPLE, capped=mask, capped_types=np.ones((1, 2)), capped_share=np.array([0.3])
    )
    mix = most_work(problem)
    assert isinstance(mix, Mix)
    assert float(table(problem, mix.fractions)[0] @ problem.work) <= 0.3 * 100.0 + 1e-6


def _random(seed: int) -> MixProblem:
    rng = np.random.default_rng(seed)
    n, w, k = 3, int(rng.integers(1, 4)), 2
    rates = rng.uniform(0.2, 3.0, (n, w)) * (rng.random((n, w)) > 0.2)
    usage = np.zeros((k, n))
    usage[rng.integers(0, k, n), np.arange(n)] = rng.choice([1, 2], n)
    return one_each(
        rates=rates,
        work=rng.uniform(1.0, 20.0, w),
        usage=usage,
        node_gpus=rng.choice([1.0, 2.0], k),
        node_usd_per_h=rng.uniform(0.5, 4.0, k),
        node_max=rng.integers(1, 3, k).astype(float),
        budget_usd_per_h=float(rng.uniform(3.0, 10.0)),
    )
