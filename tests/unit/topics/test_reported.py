"""Records read in batches: the same as each read alone, whoever stands beside it."""

from __future__ import annotations

import struct
from binascii import b2a_base64
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.demand.windows import TelemetryWindows
from tests.unit.topics.any_records import JUNK, RECORDS
from topics.checks import InvalidRecord
from topics.codec import decode, encode
from topics.reported import Reported, read_reported, reported
from topics.sketch import LOWEST, NUMBERS, WIDTH, to_text
from topics.telemetry import SKETCHES, Telemetry

T0_MS = 1_700_000_000_000
GOOD = RECORDS["telemetry"].map(encode)


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


def as_before(record: Telemetry) -> bytes:
    """As the version before wrote it."""
    wire = orjson.loads(encode(record))
    del wire["cells"]
    for name in SKETCHES:
        pairs = (
            (bucket - LOWEST, count)
            for bucket, seen in getattr(record, name).items()
            for count in [65_535] * (seen // 65_535) + [seen % 65_535]
        )
        packed = b"".join(struct.pack("<HH", *pair) for pair in pairs)
        wire[name] = b2a_base64(packed, newline=False).decode()
    return orjson.dumps(wire)


BEFORE = RECORDS["telemetry"].map(as_before)


@st.composite
def changed_before(draw: st.DrawFn) -> bytes:
    """A record of the version before with something else in one of its sketches."""
    wire = orjson.loads(draw(BEFORE))
    odd = st.sampled_from(["", "=", "AAAA", "AAAAAA==", "xQIBAA==", "/////w==", "é", None, {}, 7])
    wire[draw(st.sampled_from(SKETCHES))] = draw(odd)
    return orjson.dumps(wire)


def alone(data: bytes) -> Reported | str:
    """What is read of `data` by the codec, as windows count it, or what is wrong with it."""
    try:
        return reported(decode("telemetry", data))
    except InvalidRecord as error:
        return str(error)


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(GOOD, BEFORE, changed(), changed_before(), st.binary(max_size=20)), max_size=8
    )
)
def test_records_of_a_batch_are_read_as_each_alone(batch: list[bytes]) -> None:
    """Whatever the others are; what is wrong is said in the same words."""
    found = read_reported(batch)
    assert [str(x) if isinstance(x, InvalidRecord) else x for x in found] == [*map(alone, batch)]


def test_a_record_of_the_version_before_is_read() -> None:
    """As it was written: sketches in base64, each in a field of its own."""
    text = (
        '{"schema_version":1,"model":"chat","gateway":"g","boot":"b","sequence":7,"end_ms":1000,'
        '"span_ms":1000,"age_ms":5,"arrivals":3,"completions":2,"failures":0,"refused":0,'
        '"attained":2,"input_tokens_arrived":30,"input_tokens":20,"output_tokens":9,"in_flight":1,'
        '"route_generation":4,"ttft_ms":"9AACAPsAAQA=","tpot_ms":"","withdrawn":0,'
        '"input_lengths":"FgEDAA==","output_lengths":"","leaving":false,"shapes":"","sent":{},'
        '"classes":"dQABAA=="}'
    )
    (found,) = read_reported([text.encode()])
    same = Telemetry(
        "chat", "g", "b", 7, 1000, 1000, 5, 3, 2, 0, 0, 2, 30, 20, 9, 1, 4,
        ttft_ms={126: 2, 133: 1}, input_lengths={160: 3}, classes={-1: 1},
    )  # fmt: skip
    assert found == reported(same)
    assert decode("telemetry", text.encode()) == same


def test_records_of_the_version_before_are_read_as_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """While gateways are upgraded after controllers, theirs are all that come: none of them needs
    the slow way, which takes fifty times as long."""
    slow: list[bytes] = []
    monkeypatch.setattr("topics.reported.decode_as", lambda _kind, data: slow.append(data))
    sketches = {name: {LOWEST + 7 * n: 1 + n} for n, name in enumerate(SKETCHES[:5])}
    record = Telemetry("chat", "g", "b", 1, 1000, 1000, 0, *[3] * 10, **sketches)
    assert read_reported([encode(record), as_before(record)] * 2) == [reported(record)] * 4
    assert not slow


def test_sketches_that_a_later_version_adds_are_left_out() -> None:
    """They follow on those that are known."""
    record = Telemetry("chat", "g", "b", 1, 1000, 1000, 0, 1, *[0] * 9, classes={5: 3})
    wire = orjson.loads(encode(record))
    wire["cells"] += NUMBERS[WIDTH * len(SKETCHES)] + NUMBERS[9]
    data = orjson.dumps(wire)
    assert decode("telemetry", data) == record
    windows = TelemetryWindows()
    (found,) = read_reported([data])
    assert isinstance(found, Reported) and windows.add(found, T0_MS)
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
    for number, read in enumerate(read_reported([encode(record) for record in history])):
        assert isinstance(read, Reported)
        batched.add(read, T0_MS + number * 700)
    now_ms = T0_MS + 6000
    for model in models:
        assert single.stats(model, now_ms, 60) == batched.stats(model, now_ms, 60)
        assert single.gateways(model, now_ms, 60) == batched.gateways(model, now_ms, 60)
        one, other = (windows.lengths(model, now_ms, 60) for windows in (single, batched))
        assert (dict(one.shapes), dict(one.inputs)) == (dict(other.shapes), dict(other.inputs))
