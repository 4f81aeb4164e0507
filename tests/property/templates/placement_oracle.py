"""Slow, simple solutions for checks of the compiled placement search. They
share no code with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import highspy
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def assignments(nodes: Sequence[int], stages: int) -> Iterator[list[list[int]]]:
    """Every partition of labelled nodes into `stages` non-empty stages, regardless of the order of
    stages.
    """

    def place(rest: list[int], parts: list[list[int]]) -> Iterator[list[list[int]]]:
        if not rest:
            if len(parts) == stages:
                yield [list(part) for part in parts]
            return
        head, tail = rest[0], rest[1:]
        for part in parts:
            part.append(head)
            yield from place(tail, parts)
            part.pop()
        if len(parts) < stages:
            parts.append([head])
            yield from place(tail, parts)
            parts.pop()

    yield from place(list(nodes), [])


def best_by_layers(table: Floats, parts: list[list[int]]) -> float:
    """The best rate of the slowest of these stages, by a recursion over layer counts."""
    total = table.shape[2]
    curves = [
        [sum(float(table[len(parts) - 1, c, j]) for c in part) for j in range(total)]
        for part in parts
    ]
    reached = {0: float("inf")}
    for curve in curves:
        following: dict[int, float] = {}
        for used, slowest in reached.items():
            for j in range(1, total - used + 1):
                value = min(slowest, curve[j - 1])
                following[used + j] = max(following.get(used + j, -1.0), value)
        reached = following
    return max(0.0, reached.get(total, 0.0))


def best_placement_by_dp(table: Floats, nodes: Sequence[int], chains: bool = False) -> float:
    """The optimum over all stage counts and assignments."""
    most = min(len(nodes), table.shape[0])
    counts = [len(nodes)] if chains else list(range(1, most + 1))
    return max(
        (
            best_by_layers(table, parts)
            for stages in counts
            if stages <= most
            for parts in assignments(nodes, stages)
        ),
        default=0.0,
    )


def best_placement_by_ilp(table: Floats, nodes: Sequence[int]) -> float:
    """The optimum by the ILP of Coral sec. 4.2. HiGHS solves one ILP per stage count."""
    return max(_ilp(table, nodes, stages) for stages in range(1, len(nodes) + 1))


def _ilp(table: Floats, nodes: Sequence[int], stages: int) -> float:
    """Maximise T.

    x[s, j]: stage s has j layers. y[s, k]: node k is in stage s. z = x y.
    """
    total = table.shape[2]
    if stages > min(total, table.shape[0]):
        return 0.0
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("random_seed", 1)
    solver.setOptionValue("mip_rel_gap", 0.0)
    solver.setOptionValue("mip_abs_gap", 1e-9)
    rate = solver.addVariable(lb=0.0)
    x = {(s, j): solver.addBinary() for s in range(stages) for j in range(1, total + 1)}
    y = {(s, k): solver.addBinary() for s in range(stages) for k in range(len(nodes))}
    for s in range(stages):
        solver.addConstr(sum(x[s, j] for j in range(1, total + 1)) == 1)
    for k in range(len(nodes)):
        solver.addConstr(sum(y[s, k] for s in range(stages)) == 1)
    solver.addConstr(sum(j * x[s, j] for s in range(stages) for j in range(1, total + 1)) == total)
    for s in range(stages):
        served = []
        for k, c in enumerate(nodes):
            for j in range(1, total + 1):
                z = solver.addBinary()
                solver.addConstr(z <= x[s, j])
                solver.addConstr(z <= y[s, k])
                solver.addConstr(z >= x[s, j] + y[s, k] - 1)
                served.append(float(table[stages - 1, c, j - 1]) * z)
        solver.addConstr(rate <= sum(served[1:], served[0]))
    solver.maximize(rate)
    status = solver.getModelStatus()
    if status == highspy.HighsModelStatus.kInfeasible:
        return 0.0
    if status != highspy.HighsModelStatus.kOptimal:
        raise RuntimeError(f"HiGHS: {status}")
    return float(solver.getInfo().objective_function_value)
