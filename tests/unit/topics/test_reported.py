"""Records read in batches: the same as each read alone, whoever stands beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.demand.windows import TelemetryWindows
from streams.ports.telemetry_wire import read_reported
from tests.unit.topics.any_records import JUNK, RECORDS
from topics import codec
from topics.checks import InvalidRecord
from topics.codec import decode, encode
from topics.reported import Kinds, Name, Reported, reported
from topics.sketch import LOWEST, MOST_COUNT, NUMBERS, WIDTH, to_text
from topics.telemetry import SKETCHES, Telemetry

T0_MS = 1_700_000_000_000
GOOD = RECORDS["telemetry"].map(encode)

Row: TypeAlias = tuple[Name, tuple[int, ...], bytes, Kinds]


@st.composite
def changed(draw: st.DrawFn) -> bytes:
    """A good record with one field missing or something else in it."""
    wire = orjson.loads(draw(GOOD))
    field = draw(st.sampled_from(sorted(wire)))
    if draw(st.booleans()):
        del wire[field]
    else:
        odd = st.sampled_from([True, -1, 10**13, 2**63, 1.0, "", "0", "a b", "!!!", "!!!é", [], {}])
        wire[field] = draw(st.one_of(odd, JUNK))
    return orjson.dumps(wire)


def rows(records: Reported) -> list[Row]:
    """What it holds, record by record."""
    numbers = map(tuple, records.numbers.tolist())
    kinds = [records.kinds.get(at, ()) for at in range(len(records))]
    return [*zip(records.names, numbers, records.cells, kinds, strict=True)]


def alone(data: bytes) -> Row | str:
    """What is read of `data` by the codec, as windows count it, or what is wrong with it."""
    try:
        return rows(reported([decode("telemetry", data)]))[0]
    except InvalidRecord as error:
        return str(error)


@settings(deadline=None)
@given(st.lists(st.one_of(GOOD, changed(), st.binary(max_size=20)), max_size=8))
def test_records_of_a_batch_are_read_as_each_alone(batch: list[bytes]) -> None:
    """Whatever the others are; what is wrong is said in the same words."""
    records, bad = read_reported(batch)
    good = iter(rows(records))
    found = [str(bad[at]) if at in bad else next(good) for at in range(len(batch))]
    assert found == [*map(alone, batch)] and not [*good]


def test_records_without_kinds_need_no_slow_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes fifty times as long; nor do those beside a record that does need it."""
    slow: list[bytes] = []
    read = codec.decode_as
    monkeypatch.setattr(
        "streams.ports.telemetry_wire.decode_as",
        lambda kind, data: slow.append(data) or read(kind, data),
    )
    sketches = {name: {LOWEST + 7 * n: 1 + n} for n, name in enumerate(SKETCHES)}
    record = Telemetry("chat", "g", "b", 1, 1000, 1000, 0, *[3] * 10, **sketches)
    odd = encode(replace(record, sent={"text": {"own/a": 2}}))
    records, bad = read_reported([encode(record), b"{", odd, encode(record)])
    assert [*bad] == [1] and slow == [b"{", odd]
    assert rows(records)[0] == rows(records)[2] == rows(reported([record]))[0]
    assert dict(records.kinds) == {1: (("text", 2),)}


def test_sketches_that_a_later_version_adds_are_left_out() -> None:
    """They follow on those that are known."""
    record = Telemetry("chat", "g", "b", 1, 1000, 1000, 0, 1, *[0] * 9, classes={5: 3})
    wire = orjson.loads(encode(record))
    wire["cells"] += NUMBERS[WIDTH * len(SKETCHES)] + NUMBERS[9]
    data = orjson.dumps(wire)
    assert decode("telemetry", data) == record
    windows = TelemetryWindows()
    records, _ = read_reported([data])
    assert windows.add_all(records, np.array([T0_MS])) == 1
    assert dict(windows.lengths("chat", T0_MS, 60).classes) == {5: 3}


@pytest.mark.parametrize("cells", ["!!!", "!! !", '!!"!', "!!\\!", "!!é!", "!!\n!", 7, None])
def test_cells_that_are_none_are_refused_by_name(cells: Any) -> None:
    """A text of another length, or with what is no digit."""
    wire = orjson.loads(encode(Telemetry("chat", "g", "b", 1, 1000, 1000, 0, *[0] * 10)))
    with pytest.raises(InvalidRecord) as caught:
        decode("telemetry", orjson.dumps({**wire, "cells": cells}))
    assert caught.value.field == "cells"


def test_a_count_beyond_a_cell_takes_several() -> None:
    """A bucket of a busy second of many gateways."""
    record = Telemetry("chat", "g", "b", 1, 1000, 1000, 0, *[0] * 10, ttft_ms={LOWEST: 20_000})
    assert to_text([record.ttft_ms]).count(NUMBERS[0]) == 3
    assert decode("telemetry", encode(record)) == record


def test_more_in_a_bucket_than_a_record_may_say_is_refused_in_a_batch_too() -> None:
    """10,000,000 in as many cells as it takes; one more is a dead letter."""
    record = Telemetry("chat", "g", "b", 1, 1000, 1000, 0, *[0] * 10, ttft_ms={0: MOST_COUNT})
    full = encode(record)
    wire = orjson.loads(full)
    over = orjson.dumps({**wire, "cells": wire["cells"] + to_text([{0: 1}])})
    records, bad = read_reported([full, over, full])
    assert [rows(records), str(bad[1])] == [[alone(full)] * 2, alone(over)]


@settings(deadline=None)
@given(st.lists(RECORDS["telemetry"], max_size=6), st.integers(0, 6))
def test_windows_say_the_same_of_batches_and_of_records_one_by_one(
    history: list[Telemetry], looked: int
) -> None:
    """Whenever somebody looks in between."""
    single, batched = TelemetryWindows(), TelemetryWindows()
    models = {record.model for record in history}
    for number, record in enumerate(history):
        if number == looked:
            assert all(single.stats(model, T0_MS, 60) for model in models)
        single.add(record, T0_MS + number * 700)
    records, bad = read_reported([encode(record) for record in history])
    assert not bad
    batched.add_all(records, T0_MS + 700 * np.arange(len(history)))
    now_ms = T0_MS + 6000
    for model in models:
        assert single.stats(model, now_ms, 60) == batched.stats(model, now_ms, 60)
        assert single.gateways(model, now_ms, 60) == batched.gateways(model, now_ms, 60)
        one, other = (windows.lengths(model, now_ms, 60) for windows in (single, batched))
        assert (dict(one.shapes), dict(one.inputs)) == (dict(other.shapes), dict(other.inputs))
