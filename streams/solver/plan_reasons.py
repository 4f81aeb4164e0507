"""The reasons of the last plan of a model: alternatives, their costs, and the binding limits.

`planned_again` solves the controller's last request again. As a process (`python -m
streams.solver.plan_reasons`), this module reads one request from stdin and writes the reasons to
stdout, so that the controller keeps its time.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from typing import Any

import orjson

from autoscaler.domain.cluster import Cluster
from autoscaler.explain.explanation import ModelReasons
from autoscaler.explain.plan_explanation import explain
from autoscaler.performance.profile_sources import cluster_profile
from autoscaler.planning.planner import OPTIONS, explained_plan
from autoscaler.planning.planner_messages import PlanRequest, Urgency
from autoscaler.planning.strategies.registry import strategy_for
from topics.codec import read_value, write_value
from topics.edge.supervision import end_with_supervisor


def planned_again(request: Any, cluster: Any, model: str) -> ModelReasons | None:
    """The planner's reasons for `request`, its last request for `model`. Both are parsed JSON.

    None if the request has no plan.
    """
    # Only a full plan contains the reasons for a model's capacity.
    asked = replace(read_value(PlanRequest, request), urgency=Urgency.FULL)
    declared = read_value(Cluster, cluster)
    profile, chosen = cluster_profile(declared), strategy_for(declared.policy)
    started_s = time.monotonic()
    options = replace(OPTIONS, elapsed_s=lambda: time.monotonic() - started_s)
    made = explained_plan(asked, declared, profile, chosen, model, options)
    if made is None:
        return None
    return explain(made[0], made[1], profile, chosen).of(model)


def main() -> int:
    """Answer one request: {"request", "cluster", "model"} on stdin, the reasons on stdout."""
    end_with_supervisor()
    os.nice(10)
    # Solver libraries print to stdout, so the answer uses another descriptor.
    with os.fdopen(os.dup(1), "wb", buffering=0) as out:
        os.dup2(2, 1)
        asked = orjson.loads(sys.stdin.buffer.read())
        out.write(write_value(planned_again(asked["request"], asked["cluster"], asked["model"])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
