"""Component graphs in virtual time: queues, paths, and the rate that a plan serves."""

from __future__ import annotations

import pytest

from autoscaler.modes.components.component_graph import ComponentGraph, Deployment, RequestType
from loadtests.experiments.component_queues import (
    GraphRequest,
    carry,
    carry_by_queues,
    seconds_on,
)
from topics.records import Endpoint, RouteGroup
from topics.routing import Hop, RoutePath, Stage

GRAPH = ComponentGraph(
    "omni",
    {"image": frozenset(), "llm": frozenset({"image"})},
    (RequestType("photo", 1.0, frozenset({"image", "llm"})),),
    (
        Deployment("image", frozenset({"image"}), 1, {"A100": 2.0}),
        Deployment("llm", frozenset({"llm"}), 1, {"A100": 1.0}),
    ),
)
TIMES = seconds_on(GRAPH, "A100")


def _cell(llms: int) -> RouteGroup:
    ends = tuple(Endpoint(f"l{n}", f"l:{n}") for n in range(llms))
    hops = (Hop("image", ("image",)), Hop("llm", ("llm",)))
    return RouteGroup(
        "cell", 1.0,
        stages=(Stage("image", (Endpoint("i0", "i:0"),)), Stage("llm", ends)),
        paths=(RoutePath("photo", 1.0, hops),),
    )  # fmt: skip


def test_a_single_request_takes_the_time_of_its_visits() -> None:
    found = carry([_cell(1)], TIMES, [GraphRequest(3.0, "photo")])
    assert found.latencies_s == pytest.approx([1.5])
    assert found.taken == {("photo", "image/llm"): 1}


def test_large_media_slow_down_only_the_encoder() -> None:
    big = [GraphRequest(0.0, "photo", size=3.0)]
    assert carry([_cell(1)], TIMES, big, frozenset({"image"})).latencies_s == pytest.approx([2.5])


@pytest.mark.parametrize(("llms", "rate"), [(1, 1.0), (2, 2.0)])
def test_the_slowest_stage_limits_the_served_rate(llms: int, rate: float) -> None:
    """Of 400 requests that arrive together, the last ends when the slowest stage has processed all
    of them.
    """
    requests = [GraphRequest(0.0, "photo") for _ in range(400)]
    for found in (
        carry([_cell(llms)], TIMES, requests),
        carry_by_queues([_cell(llms)], GRAPH, TIMES, requests),
    ):
        assert 400 / max(found.latencies_s) == pytest.approx(rate, rel=0.02)
        assert found.busy_s["i0"] == pytest.approx(200.0)
        assert found.share_within(1e9) == 1.0
