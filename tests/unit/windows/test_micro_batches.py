"""Micro-batches of a partition are the same for every reader, also after clocks were set back."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.ports.micro_batches import PAUSE_MS, PartitionMerger
from topics.codec import encode
from topics.demand import Demand
from topics.keys import Keys
from topics.macs import Verifier
from topics.telemetry import Telemetry
from topics.time_base import TimeBase

T0_MS = 1_700_000_000_000
SPEEDS = (1.0, 10.0, 30.0)


def record(sequence: int, gateway: str = "g", model: str = "chat", boot: str = "b") -> bytes:
    """A record with one arrival."""
    return encode(Telemetry(model, gateway, boot, sequence, T0_MS, 1000, 0, 1, *[0] * 9))


def merged(
    log: list[tuple[int, bytes]],
    start: int = 0,
    speed: float = 1.0,
    invalid: list[int] | None = None,
) -> list[Demand]:
    """Merged records of a reader that reads the (append time, value) pairs from `start` on."""
    now_s = [0.0]
    bad: list[int] = [] if invalid is None else invalid
    merger = PartitionMerger(
        0, TimeBase(speed, T0_MS, 0), Verifier(Keys()), lambda at, *_: bad.append(at),
        lambda: now_s[0],
    )  # fmt: skip
    found: list[Demand] = []
    for offset, (append_ms, value) in [*enumerate(log)][start:]:
        batch = merger.take(offset, append_ms, value, ())
        found += merger.merge(batch) if batch is not None else []
    now_s[0] += 10.0
    last = merger.end(len(log))
    return found + (merger.merge(last) if last is not None else [])


def arrivals(records: list[Demand]) -> int:
    return sum(second.counts[0] for one in records for second in one.seconds)


GAPS = st.lists(st.integers(-3000, 1500), min_size=1, max_size=40)


@settings(deadline=None)
@given(GAPS, st.sampled_from(SPEEDS), st.integers(0, 40))
def test_a_successor_computes_equal_records_from_every_offset_that_was_acknowledged(
    gaps: list[int], speed: float, at: int
) -> None:
    """The broker's clock may be set back. The successor begins after a micro-batch."""
    times = T0_MS + np.cumsum(gaps)
    log = [(int(one), record(n)) for n, one in enumerate(times)]
    whole = merged(log, 0, speed)
    assert arrivals(whole) == len(log)
    starts = [0, *(one.last_offset + 1 for one in whole)]
    start = starts[min(at, len(starts) - 1)]
    assert merged(log, start, speed) == [one for one in whole if one.first_offset >= start]


@settings(deadline=None)
@given(GAPS, st.sampled_from(SPEEDS))
def test_micro_batches_follow_each_other_without_gaps(gaps: list[int], speed: float) -> None:
    times = T0_MS + np.cumsum(gaps)
    found = merged([(int(one), record(n)) for n, one in enumerate(times)], 0, speed)
    assert found[0].first_offset == 0 and found[-1].last_offset == len(gaps) - 1
    for one, other in pairwise(found):
        assert other.first_offset == one.last_offset + 1


@pytest.mark.parametrize("speed", SPEEDS)
def test_a_micro_batch_is_short_in_domain_time(speed: float) -> None:
    """Records come 1 ms apart for three domain seconds, and then after a pause."""
    many = int(3000 / speed)
    log = [(T0_MS + at, record(at)) for at in range(many)]
    log.append((log[-1][0] + int(PAUSE_MS / speed) + 1, record(many)))
    assert len(merged(log, 0, speed)) == 4


def test_a_record_that_a_gateway_sent_twice_counts_once() -> None:
    """Also in a later micro-batch. Another boot of the gateway has sequence numbers of its own."""
    log = [(T0_MS, record(1)), (T0_MS, record(1)), (T0_MS + 1, record(2))]
    log += [(T0_MS + 5000, record(2)), (T0_MS + 5000, record(2, boot="again"))]
    assert arrivals(merged(log)) == 3


def test_invalid_records_are_reported_and_leave_no_gap() -> None:
    """A whole micro-batch of them has no merged record, and belongs to the next one."""
    log = [(T0_MS, record(1)), (T0_MS + 3000, b"rubbish"), (T0_MS + 6000, record(2))]
    invalid: list[int] = []
    found = merged(log, invalid=invalid)
    assert invalid == [1]
    assert [(one.first_offset, one.last_offset) for one in found] == [(0, 0), (1, 2)]


def test_an_open_micro_batch_stays_open_while_a_record_is_unread() -> None:
    now_s = [0.0]
    merger = PartitionMerger(
        0, TimeBase(), Verifier(Keys()), lambda *_: None, lambda: now_s[0]
    )  # fmt: skip
    merger.take(4, T0_MS, record(1), ())
    assert merger.end(5) is None
    now_s[0] = 1.0
    assert merger.is_idle() and merger.end(6) is None
    assert merger.end(5) is not None and merger.end(5) is None
