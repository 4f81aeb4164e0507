"""Wire format between the controller and its solver: one JSON object per line.

Both processes run the same version of Shoal on one machine, so lines have no version; a malformed
line is a bug.
"""

from __future__ import annotations

import orjson

from autoscaler.domain.cluster import Cluster
from autoscaler.planning.planner_messages import PlanAnswer, PlanRequest
from topics.codec import read_value, write_value


def encode_request(request: PlanRequest, cluster: Cluster) -> bytes:
    """Encode a request for a plan of `cluster`, the current declared cluster, as a line."""
    return write_value({"request": request, "cluster": cluster}) + b"\n"


def decode_request(line: bytes) -> tuple[PlanRequest, Cluster]:
    """Decode a line that `encode_request` wrote."""
    said = orjson.loads(line)
    request: PlanRequest = read_value(PlanRequest, said["request"])
    cluster: Cluster = read_value(Cluster, said["cluster"])
    return request, cluster


def decode_answer(line: bytes) -> PlanAnswer:
    """Decode a line that `encode_answer` wrote."""
    found: PlanAnswer = read_value(PlanAnswer, orjson.loads(line))
    return found


def encode_answer(found: PlanAnswer) -> bytes:
    """Encode a planner answer as a line."""
    return write_value(found) + b"\n"
