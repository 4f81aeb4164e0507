"""Impossible numbers are refused by name before any solve."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoscaler.domain.validation import InvalidValue
from autoscaler.optimizer.problem import AllocationProblem
from loadtests.template_problem import TemplateProblem


def instance() -> TemplateProblem:
    return TemplateProblem(
        price_usd_per_h=np.array([[1.0, 2.0]]),
        available_nodes=np.array([[3, 1]]),
        demand_req_per_s=np.array([2.0]),
        nodes=(np.array([[1, 0], [0, 1]], dtype=np.uint8),),
        throughput_req_per_s=(np.array([1.0, 2.5]),),
        start_penalty=0.1,
    )


def problem() -> AllocationProblem:
    return AllocationProblem(
        cost_usd_per_h=np.array([1.0, 2.0]),
        upper=np.array([2.0, np.inf]),
        serve_indptr=np.array([0, 1, 2]),
        serve_row=np.array([0, 0]),
        serve_rate=np.array([1.0, 2.5]),
        use_indptr=np.array([0, 1, 2]),
        use_resource=np.array([0, 1]),
        use_amount=np.array([1.0, 1.0]),
        demand_req_per_s=np.array([2.0]),
        priority=np.array([0]),
        capacity=np.array([3.0, 1.0]),
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -1.0])
@pytest.mark.parametrize(
    "name", ["price_usd_per_h", "available_nodes", "demand_req_per_s", "throughput_0", "K"]
)
def test_a_problem_instance_refuses_a_bad_number_by_its_name(name: str, bad: float) -> None:
    """Prices, availability, demand, throughput and penalties may not be NaN, infinite or
    negative."""
    good = instance()
    if name == "throughput_0":
        change = {"throughput_req_per_s": (np.array([1.0, bad]),)}
    elif name == "K":
        change = {"start_penalty": bad}
    else:
        values = getattr(good, name).astype(float)
        values[(0,) * values.ndim] = bad
        change = {name: values}
    with pytest.raises(InvalidValue, match=name):
        replace(good, **change)


def test_a_problem_instance_refuses_missing_columns_and_groups() -> None:
    """There are fewer node counts than prices, or a group has no throughputs."""
    with pytest.raises(InvalidValue, match="nodes_0"):
        replace(instance(), nodes=(np.array([[1], [1]], dtype=np.uint8),))
    with pytest.raises(InvalidValue, match="nodes"):
        replace(instance(), throughput_req_per_s=())
    with pytest.raises(InvalidValue, match="throughput_0"):
        replace(instance(), throughput_req_per_s=(np.array([1.0]),))


def test_zero_demand_and_zero_throughput_are_refused() -> None:
    """The solver would divide by zero."""
    with pytest.raises(InvalidValue, match="demand_req_per_s"):
        replace(instance(), demand_req_per_s=np.array([0.0]))
    with pytest.raises(InvalidValue, match="throughput_0"):
        replace(instance(), throughput_req_per_s=(np.array([0.0, 1.0]),))


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("cost_usd_per_h", np.nan),
        ("cost_usd_per_h", np.inf),
        ("cost_usd_per_h", -0.5),
        ("upper", np.nan),
        ("upper", -1.0),
        ("serve_rate", 0.0),
        ("serve_rate", np.inf),
        ("use_amount", np.nan),
        ("use_amount", -np.inf),
        ("demand_req_per_s", 0.0),
        ("demand_req_per_s", np.nan),
        ("capacity", np.inf),
        ("capacity", -1.0),
    ],
)
def test_a_problem_refuses_a_bad_number_by_its_name(name: str, bad: float) -> None:
    """The test sets a bad number in every array of the general form of the problem."""
    values = getattr(problem(), name).copy()
    values[0] = bad
    with pytest.raises(InvalidValue, match=rf"{name}\[0\]"):
        replace(problem(), **{name: values})


def test_a_problem_refuses_rows_that_do_not_exist() -> None:
    """The offsets do not end with the number of entries, or row numbers are out of range."""
    with pytest.raises(InvalidValue, match="serve_indptr"):
        replace(problem(), serve_indptr=np.array([0, 1, 3]))
    with pytest.raises(InvalidValue, match="use row"):
        replace(problem(), use_resource=np.array([0, 2]))
    with pytest.raises(InvalidValue, match="use_indptr"):
        replace(problem(), use_indptr=np.array([0, 2, 1]))
