"""Merged records of a partition: windows over them equal windows over all records."""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.estimate.windows import Stats, TelemetryWindows
from streams.clock import Clock
from streams.controller.demand_sources import gateways_sink
from streams.ports.merged_records import MergedRecords
from streams.ports.micro_batches import PartitionMerger
from streams.ports.telemetry_merge import merged as merge
from streams.ports.telemetry_wire import read_reported
from topics.checks import MAX_COUNT, InvalidValue
from topics.codec import decode, encode
from topics.demand import DemandSecond
from topics.keys import Keys
from topics.macs import Verifier
from topics.telemetry import MOST_PER_S, Telemetry
from topics.time_base import TimeBase

T0_MS = 1_700_000_000_000
NOW_MS = T0_MS + 40_000
CLOCK = Clock(TimeBase(1.0, NOW_MS, 0), mono_ns=lambda: 0, broker_ms=lambda: NOW_MS)

RECORDS = st.lists(
    st.tuples(
        st.integers(0, 2),  # gateway
        st.integers(0, 20_000),  # append time, ms after T0
        st.integers(0, 3000),  # age
        st.integers(0, 50),  # arrivals
    ),
    max_size=30,
)


def never(*_: object) -> NoReturn:
    raise AssertionError("every record is valid")


def wire(gateway: int, sequence: int, age_ms: int, arrivals: int) -> bytes:
    return encode(
        Telemetry(
            "chat", f"g{gateway}", "b", sequence, T0_MS, 1000, age_ms, arrivals, arrivals, 0, 0,
            arrivals, arrivals * 100, arrivals * 100, arrivals * 7, arrivals, 3,
            ttft_ms={arrivals: arrivals} if arrivals else {},
        )
    )  # fmt: skip


@settings(deadline=None)
@given(RECORDS, st.integers(1, 3))
def test_merged_records_equal_all_of_their_records(
    history: list[tuple[int, int, int, int]], copies: int
) -> None:
    """Counts, coverage and gateways are equal, however often a merged record arrives."""
    history.sort(key=lambda one: one[1])
    plain, merged = TelemetryWindows(), TelemetryWindows()
    merger = PartitionMerger(3, CLOCK.time_base, Verifier(Keys()), never)
    batches = []
    for sequence, (gateway, after_ms, age_ms, arrivals) in enumerate(history):
        append_ms = T0_MS + after_ms
        data = wire(gateway, sequence, age_ms, arrivals)
        plain.add_all(read_reported([data])[0], np.array([append_ms - age_ms]))
        batches.append(merger.take(sequence, append_ms, data, ()))
    batches.append(merger.open)
    records, sink = MergedRecords(CLOCK), gateways_sink(merged, {}, lambda: None)
    for batch in batches:
        for record in merger.merge(batch) if batch is not None else ():
            assert decode("demand", encode(record)) == record
            records.take([record] * copies, sink)
    one, other = (w.stats("chat", NOW_MS, 60) for w in (plain, merged))
    assert isinstance(one, Stats) == isinstance(other, Stats)
    if isinstance(one, Stats):
        assert one == other
    assert [
        (g.gateway, g.reported_ms, g.in_flight) for g in plain.gateways("chat", NOW_MS, 60)
    ] == [(g.gateway, g.reported_ms, g.in_flight) for g in merged.gateways("chat", NOW_MS, 60)]


def test_a_gateway_with_too_high_counts_does_not_affect_others() -> None:
    """Two records of one second each have the maximum count. The merged record has the maximum too
    and can be decoded. The other model is not affected.
    """
    most = Telemetry(
        "long", "g", "b", 1, T0_MS, 1000, 0, *MOST_PER_S[:8], 0, 0,
        sent={"text": {"own/a": MAX_COUNT}},
        cache_queried_tokens=MOST_PER_S[8], cache_hit_tokens=MOST_PER_S[9],
    )  # fmt: skip
    batch = [encode(replace(most, sequence=k)) for k in range(2)] + [wire(0, 1, 0, 7)]
    records, _ = read_reported(batch)
    times_ms = np.full(len(records), T0_MS + 500)
    found = {one.model: one for one in merge(0, (0, 2), records, times_ms)}
    assert found["long"].seconds[-1].counts == MOST_PER_S
    assert found["long"].kinds["text"] == MAX_COUNT
    assert sum(second.counts[0] for second in found["chat"].seconds) == 7
    assert [decode("demand", encode(one)) for one in found.values()] == [*found.values()]


def test_a_sign_off_holds_against_a_later_dated_record_of_its_boot() -> None:
    """A gateway that was restarted counts as present."""
    plain = Telemetry("chat", "g", "b", 1, T0_MS, 1000, 1, *[0] * 10)
    bye = replace(plain, sequence=2, age_ms=8, leaving=True)
    late = replace(plain, sequence=3, age_ms=0)
    again = replace(plain, boot="again", age_ms=0)
    for said, left in (([plain, bye, late], True), ([plain, bye, late, again], False)):
        (found,) = merge(
            3, (0, 3), read_reported([*map(encode, said)])[0], np.full(len(said), T0_MS)
        )
        (word,) = found.gateways
        assert (word.boot, word.leaving) == (said[-1].boot, left)


def test_a_second_of_an_older_worker_has_no_cached_tokens() -> None:
    assert DemandSecond(T0_MS, (7, 6, 0, 0, 6, 700, 600, 60), "").counts == (
        7, 6, 0, 0, 6, 700, 600, 60, 0, 0,
    )  # fmt: skip
    with pytest.raises(InvalidValue, match="counts"):
        DemandSecond(T0_MS, (7,) * 7, "")
