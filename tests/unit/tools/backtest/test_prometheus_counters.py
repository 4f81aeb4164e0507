"""Counters of servers become requests per step, through gaps, restarts and copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.tools.backtest.prometheus_counters import (
    Grid,
    ServedRequests,
    read_requests,
    trace_begin,
)

FROM_S, STEP_S = 1_000_020.0, 60.0


def read(*series: tuple[Mapping[str, str], Sequence[float | None]]) -> dict[str, ServedRequests]:
    """The requests of counters with these values at the edges of the steps; None = no sample."""
    steps = len(series[0][1]) - 1

    def ask(query: str, from_s: float, to_s: float, step_s: float) -> list[dict[str, Any]]:
        if "timestamp(" in query:
            return []
        assert "last_over_time" in query and "[60s]" in query and step_s == STEP_S
        matrix = []
        for labels, values in series:
            times = [(FROM_S + k * STEP_S, v) for k, v in enumerate(values) if v is not None]
            inside = [[at_s, repr(v)] for at_s, v in times if from_s <= at_s <= to_s]
            if inside:
                matrix.append({"metric": {"model_name": "m", **labels}, "values": inside})
        return matrix

    return read_requests(ask, Grid(FROM_S, STEP_S, steps))[0]


def test_a_gap_holds_the_requests_between_its_ends() -> None:
    found = read(({}, [10, 12, None, None, 18, 18]))["m"]
    assert found.counts.tolist() == [2, 2, 2, 2, 0]
    assert found.gaps.tolist() == [False, True, True, True, False]


def test_zero_is_not_a_gap() -> None:
    found = read(({}, [5, 5, 5]))["m"]
    assert found.counts.tolist() == [0, 0] and not found.gaps.any()
    assert read(({}, [None, None, None])) == {}


def test_a_restarted_counter_begins_at_zero() -> None:
    assert read(({}, [100, 104, 3, 5]))["m"].counts.tolist() == [4, 3, 2]


def test_servers_are_added_up_and_each_may_come_and_go() -> None:
    """One server starts in the middle, and one ends there. Neither is a gap."""
    found = read(
        ({"instance": "a"}, [0, 4, 8, None, None]),
        ({"instance": "b", "engine": "0"}, [None, None, 50, 51, 52]),
        ({"instance": "b", "engine": "1"}, [None, None, 70, 72, 74]),
    )["m"]
    assert found.counts.tolist() == [4, 4, 3, 3]
    assert not found.gaps.any() and found.first == 0


def test_copies_of_a_server_count_once_and_fill_each_other() -> None:
    """A Prometheus has two replicas. The one without a gap gives the shape."""
    found = read(
        ({"instance": "a", "replica": "1"}, [0, 4, None, 8, 9]),
        ({"instance": "a", "replica": "2"}, [None, 4, 8, 8, 9]),
        ({"instance": "b", "job": "x"}, [0, 1, 2, 3, 4]),
        ({"instance": "b", "job": "y"}, [0, 1, 2, 3, 4]),
    )["m"]
    assert found.counts.tolist() == [5, 5, 1, 2] and not found.gaps.any()


def test_models_are_told_apart_and_the_first_sample_is_known() -> None:
    found = read(({"model_name": "x"}, [None, 1, 2]), ({"model_name": "y/z"}, [None, None, 9]))
    assert {name: one.first for name, one in found.items()} == {"x": 1, "y/z": 2}
    assert trace_begin(found) == 1


@given(
    st.lists(st.integers(0, 9), min_size=2, max_size=40),
    st.lists(st.booleans(), min_size=41, max_size=41),
)
def test_no_request_is_lost_or_made_by_gaps(grown: list[int], missing: list[bool]) -> None:
    """The requests between the first and the last sample are those of the counter."""
    counter = [float(value) for value in np.cumsum([7, *grown])]
    values = [None if missing[k] else value for k, value in enumerate(counter)]
    known = [value for value in values if value is not None]
    found = read(({}, values))
    assert bool(found) == bool(known)
    if known:
        assert found["m"].counts.sum() == pytest.approx(known[-1] - known[0])


def test_a_long_range_is_read_in_parts() -> None:
    """The size of an answer is limited. Parts are joined without a lost step."""
    counter = [2.0 * k for k in range(4500)]
    counts = read(({}, counter))["m"].counts
    assert len(counts) == 4499 and set(counts.tolist()) == {2.0}
