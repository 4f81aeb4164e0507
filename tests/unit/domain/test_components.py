"""Component graphs: paths of requests, and processing times from one profiled mix."""

from __future__ import annotations

import pytest

from autoscaler.domain.component_graph import ComponentGraph, Deployment, RequestType
from autoscaler.domain.validation import InvalidValue

AFTER = {"e0": frozenset[str](), "e1": frozenset[str](), "llm": frozenset({"e0", "e1"})}
TEXT = RequestType("text", 0.5, frozenset({"llm"}))
ONE = RequestType("one", 0.3, frozenset({"e0", "llm"}))
BOTH = RequestType("both", 0.2, frozenset({"e0", "e1", "llm"}))


def deployment(*components: str, rate: float = 1.0, gpus: int = 1) -> Deployment:
    return Deployment("+".join(components), frozenset(components), gpus, {"G": rate})


def graph(*deployments: Deployment) -> ComponentGraph:
    return ComponentGraph("m", AFTER, (TEXT, ONE, BOTH), deployments)


ALL = graph(
    deployment("e0", rate=20.0),
    deployment("e1", rate=40.0),
    deployment("llm", rate=2.0),
    deployment("e0", "llm", rate=1.5),
    deployment("e0", "e1", "llm", rate=1.0),
)


def spelt(kind: RequestType) -> set[str]:
    return {
        " ".join(f"{hop.deployment.name}({'+'.join(sorted(hop.role))})" for hop in path)
        for path in ALL.paths(kind)
    }


def test_a_request_can_use_every_deployment_with_its_components() -> None:
    """Text requests need only the LLM, so every deployment with the LLM can serve them."""
    assert spelt(TEXT) == {"llm(llm)", "e0+llm(llm)", "e0+e1+llm(llm)"}


def test_every_path_visits_each_component_once_after_its_inputs() -> None:
    """The case of the paper: the second encoder runs separately; the first runs together with the
    LLM.
    """
    found = spelt(BOTH)
    assert "e1(e1) e0+llm(e0+llm)" in found
    assert not any("e0+llm(e0+llm) e1" in path for path in found)
    for path in ALL.paths(BOTH):
        done: set[str] = set()
        for hop in path:
            assert not hop.role & done
            assert all(AFTER[c] <= done | hop.role for c in hop.role)
            done |= hop.role
        assert done == {"e0", "e1", "llm"}


def test_one_visit_runs_all_components_of_an_instance() -> None:
    """Two encoders on one instance are one visit, not two."""
    assert "e0+e1+llm(e0+e1+llm)" in spelt(BOTH)
    for path in ALL.paths(BOTH):
        names = [hop.deployment.name for hop in path]
        assert len(set(names)) == len(names)


def test_processing_times_match_the_profiled_mix() -> None:
    """Algorithm 3: at the profiled mix, the mean time of each deployment equals the measured
    time."""
    seconds = ALL.seconds("G")
    assert seconds["e0", frozenset({"e0"})] == pytest.approx(1.0 / 20.0 / 0.5)
    assert seconds["e1", frozenset({"e1"})] == pytest.approx(1.0 / 40.0 / 0.2)
    assert seconds["llm", frozenset({"llm"})] == pytest.approx(0.5)
    shared = "e0+e1+llm"
    mean = (
        0.5 * seconds[shared, frozenset({"llm"})]
        + 0.3 * seconds[shared, frozenset({"e0", "llm"})]
        + 0.2 * seconds[shared, frozenset({"e0", "e1", "llm"})]
    )
    assert mean == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: graph(deployment("llm")), "components that some deployment runs"),
        (lambda: graph(deployment("e0", "e1", "llm"), deployment("ear")), "'ear'"),
        (
            lambda: ComponentGraph(
                "m",
                {"a": frozenset({"b"}), "b": frozenset({"a"})},
                (RequestType("t", 1.0, frozenset({"a"})),),
                (deployment("a"),),
            ),
            "no circle",
        ),
        (
            lambda: ComponentGraph("m", AFTER, (TEXT,), (deployment("llm"),)),
            "a sum of 1",
        ),
        (lambda: RequestType("t", 1.0, frozenset()), "at least one component"),
        (lambda: Deployment("d", frozenset({"a"}), 3, {"G": 1.0}), "1, 2, 4 or 8"),
    ],
)
def test_invalid_graphs_are_refused(make: object, message: str) -> None:
    """The error names the allowed values."""
    with pytest.raises(InvalidValue, match=message):
        make()  # type: ignore[operator]
