"""What goes over the pipe between the controller and its solver: one JSON object per line.

Owns the form of questions and answers. Both ends are the same version of Shoal on one machine,
so there are no versions here; what does not fit is an error of ours.
"""

from __future__ import annotations

import orjson

from autoscaler.domain.cluster import Cluster
from autoscaler.planning.planner_messages import PlanAnswer, PlanRequest
from topics.codec import read_value, write_value


def encode_request(request: PlanRequest, cluster: Cluster) -> bytes:
    """A line that asks for a plan of `cluster`, as it is declared now."""
    return write_value({"request": request, "cluster": cluster}) + b"\n"


def decode_request(line: bytes) -> tuple[PlanRequest, Cluster]:
    """What `ask` put into the line."""
    said = orjson.loads(line)
    request: PlanRequest = read_value(PlanRequest, said["request"])
    cluster: Cluster = read_value(Cluster, said["cluster"])
    return request, cluster


def decode_answer(line: bytes) -> PlanAnswer:
    """What `reply` put into the line."""
    found: PlanAnswer = read_value(PlanAnswer, orjson.loads(line))
    return found


def encode_answer(found: PlanAnswer) -> bytes:
    """A line that answers."""
    return write_value(found) + b"\n"
