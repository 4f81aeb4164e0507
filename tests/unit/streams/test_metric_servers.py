"""Which series are copies of one server, and which requests count once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.ports.metric_servers import (
    FINISHED,
    GROWTH,
    MARK,
    RESTARTS,
    RUNNING,
    is_prefill,
    servers,
    serving,
    summed,
)


def sample(mark: str, value: float, **labels: str) -> dict[str, Any]:
    return {"metric": {MARK: mark, **labels}, "value": [0, repr(value)]}


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2)), min_size=1, unique=True),
    st.lists(
        st.dictionaries(st.sampled_from(["job", "team", "app", "endpoint"]), st.text(max_size=3)),
        min_size=1,
        max_size=4,
    ),
    st.randoms(),
)
def test_copies_with_any_labels_of_their_scrapers_are_one_server(
    engines: list[tuple[int, int]], scrapers: list[dict[str, str]], random: Any
) -> None:
    """Some scrapers attach the pod, others not."""
    series = [
        {
            "instance": f"10.0.0.{at}:80", "engine": str(engine), **own,
            **({"pod": f"p{at}"} if random.random() < 0.5 else {}),
        }
        for at, engine in engines
        for own in scrapers
    ]  # fmt: skip
    random.shuffle(series)
    found = servers(series)
    assert sorted(one.key for one in found) == sorted(
        (f"10.0.0.{at}:80", str(engine)) for at, engine in engines
    )
    assert sorted(place for one in found for place in one.places) == list(range(len(series)))


@pytest.mark.parametrize(
    ("labels", "prefill"),
    [
        ({"pod": "vllm-prefill-0"}, True),
        ({"pod": "disagg-0-vllmprefillworker-x7"}, True),
        ({"dynamo_component": "VllmPrefillWorker"}, True),
        ({"kv_role": "kv_producer"}, True),
        ({"pod": "qwen-chunked-prefill-0"}, False),
        ({"role": "prefill"}, True),
        ({"llm_d_ai_role": "decode", "pod": "a"}, False),
        ({"pod": "prefill-decode-0"}, False),
        ({"pod": "prefillable-0"}, False),
        ({"model_name": "prefill"}, False),
        ({"engine_type": "prefill"}, True),
    ],
)
def test_the_role_of_a_server_is_read_from_its_labels(
    labels: dict[str, str], prefill: bool
) -> None:
    assert is_prefill(labels) is prefill
    assert len(serving([labels])) == 1  # There is no other server.
    other = {"instance": "b:80", "pod": "decode-1"}
    assert len(serving([{"instance": "a:80", **labels}, other])) == (1 if prefill else 2)


def test_the_growth_of_a_restarted_server_does_not_count() -> None:
    vector = [
        sample(FINISHED, 1.0, instance="a"), sample(FINISHED, 2.0, instance="b"),
        sample(RESTARTS, 0.0, instance="a"), sample(RESTARTS, 1.0, instance="b"),
        sample(GROWTH, 0.5, instance="a"), sample(GROWTH, -9.0, instance="b"),
    ]  # fmt: skip
    assert [one["value"][1] for one in summed(vector)] == ["3.5"]
    assert summed([sample(RUNNING, 2.0)]) == []
    invalid = [sample(FINISHED, float("nan"), instance="a")]
    assert summed(invalid) == invalid
    assert summed([]) == []


@pytest.mark.parametrize(
    ("one", "other", "count"),
    [
        ({"instance": "10.0.0.1:80", "pod": "a"}, {"instance": "a", "pod": "a"}, 1),
        ({"instance": "10.0.0.1:80", "pod": "a"}, {"instance": "a:80", "job": "k"}, 1),
        ({"instance": "10.0.0.1:80", "pod": "a"}, {"instance": "a:81", "job": "k"}, 2),
        ({"instance": "10.0.0.1:80"}, {"instance": "10.0.0.1"}, 1),
        ({"instance": "10.0.0.1:80"}, {"instance": "http://10.0.0.1:80/metrics"}, 1),
        ({"instance": "10.0.0.1:80", "pod": "a"}, {"instance": "10.0.0.1:81", "pod": "a"}, 2),
        ({"instance": "localhost:80", "dc": "a"}, {"instance": "localhost:80", "dc": "b"}, 2),
        ({"instance": "vllm:80", "site": "a"}, {"instance": "vllm:80", "site": "b"}, 2),
        (
            {"instance": "vllm:80", "kubernetes_namespace": "a"},
            {"instance": "vllm:80", "kubernetes_namespace": "b"},
            2,
        ),
    ],
)
def test_scrapers_write_the_address_of_a_server_differently(
    one: dict[str, str], other: dict[str, str], count: int
) -> None:
    for series in ([one, other], [other, one]):
        found = servers(series)
        assert len(found) == count
        assert sorted(place for server in found for place in server.places) == [0, 1]


def test_a_role_that_one_scraper_attaches_counts_for_all_copies() -> None:
    vector = [
        sample(FINISHED, 5.0, instance="10.0.0.1:80", pod="a"),
        sample(FINISHED, 5.0, instance="a", pod="a", role="prefill"),
        sample(FINISHED, 5.0, instance="10.0.0.2:80", pod="b"),
        sample(GROWTH, 0.0, instance="10.0.0.2:80", pod="b"),
    ]
    assert [one["value"][1] for one in summed(vector)] == ["5.0"]
