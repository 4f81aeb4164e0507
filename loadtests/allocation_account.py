"""The account of a plan of templates: cost, served demand and used capacity.

It is summed row by row, without the optimizer's own check.
"""

from __future__ import annotations

import numpy as np

from autoscaler.optimizer.array_types import Floats, Ints
from loadtests.template_problem import TemplateProblem


def account(problem: TemplateProblem, rows: Ints) -> tuple[float, Floats, bool]:
    """Cost in USD/h, requests/s served by group, and whether any capacity is exceeded.

    `rows` (n, 4): group, region, template, count. All instances are newly started.
    """
    price = problem.price_usd_per_h
    used = np.zeros(price.shape)
    served = np.zeros(len(problem.demand_req_per_s))
    cost = 0.0
    for k, region, template, count in rows.tolist():
        nodes = problem.nodes[k][template].astype(np.float64)
        used[region] += count * nodes
        served[k] += count * float(problem.throughput_req_per_s[k][template])
        cost += count * float(nodes @ price[region]) * (1.0 + problem.start_penalty)
    return cost, served, bool((used > problem.available_nodes + 1e-9).any())


def changes(rows: Ints, running: Ints) -> tuple[int, int]:
    """Numbers of instances to start and to stop for a change from the plan `running` to the plan
    `rows`."""
    before = {(k, r, i): n for k, r, i, n in running.tolist()}
    after = {(k, r, i): n for k, r, i, n in rows.tolist()}
    keys = before.keys() | after.keys()
    started = sum(max(0, after.get(key, 0) - before.get(key, 0)) for key in keys)
    stopped = sum(max(0, before.get(key, 0) - after.get(key, 0)) for key in keys)
    return started, stopped
