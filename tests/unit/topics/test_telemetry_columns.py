"""Records read in a batch equal records read one by one, whatever else the batch contains."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.estimate.windows import TelemetryWindows
from streams.ports import telemetry_wire
from streams.ports.telemetry_wire import read_reported
from tests.unit.topics.any_records import JUNK, RECORDS
from topics import codec
from topics.checks import InvalidValue
from topics.codec import decode, encode
from topics.sketch import HIGHEST, LOWEST, MOST_COUNT, NUMBERS, WIDTH, sketches_to_text
from topics.telemetry import SKETCHES, Telemetry
from topics.telemetry_columns import (
    SentByKind,
    SourceName,
    TelemetryBatch,
    batch_of,
    cells_text,
    parse_cells,
)

T0_MS = 1_700_000_000_000
GOOD = RECORDS["telemetry"].map(encode)

LATER = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
"""Values that a field of a later version can have."""

Row: TypeAlias = tuple[SourceName, tuple[int, ...], bytes, SentByKind]


@st.composite
def changed(draw: st.DrawFn) -> bytes:
    """A valid record in which one field is missing or changed."""
    wire = orjson.loads(draw(GOOD))
    field = draw(st.sampled_from(sorted(wire)))
    if draw(st.booleans()):
        del wire[field]
    else:
        odd = st.sampled_from([True, -1, 10**13, 2**63, 1.0, "", "0", "a b", "!!!", "!!!é", [], {}])
        wire[field] = draw(st.one_of(odd, JUNK))
    return orjson.dumps(wire)


def rows(records: TelemetryBatch) -> list[Row]:
    """The values of a batch, record by record."""
    numbers = map(tuple, records.numbers.tolist())
    kinds = [records.kinds.get(at, ()) for at in range(len(records))]
    return [*zip(records.names, numbers, records.cells, kinds, strict=True)]


def alone(data: bytes) -> Row | str:
    """The record that the codec decodes from `data`, in the form that windows use, or the error
    text.
    """
    try:
        return rows(batch_of([decode("telemetry", data)]))[0]
    except InvalidValue as error:
        return str(error)


@settings(deadline=None)
@given(st.lists(st.one_of(GOOD, changed(), st.binary(max_size=20)), max_size=8))
def test_records_of_a_batch_are_read_as_each_alone(batch: list[bytes]) -> None:
    """The other records of the batch have no effect, and error texts are equal."""
    records, bad = read_reported(batch)
    good = iter(rows(records))
    found = [str(bad[at]) if at in bad else next(good) for at in range(len(batch))]
    assert found == [*map(alone, batch)] and not [*good]


def test_records_of_gateways_use_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow path takes fifty times as long. A record that needs it does not slow down its
    neighbours.
    """
    slow: list[bytes] = []
    read = codec.decode_as
    monkeypatch.setattr(
        "streams.ports.telemetry_wire.decode_as",
        lambda kind, data: slow.append(data) or read(kind, data),
    )
    sketches = {name: {LOWEST + 7 * n: 1 + n} for n, name in enumerate(SKETCHES)}
    record = Telemetry("chat", "g", "b", 1, 1000, 1000, 0, *[3] * 10, **sketches)
    kinds = encode(replace(record, sent={"text": {"own/a": 2, "own/b>c&d": 3}, "image": {}}))
    records, bad = read_reported([encode(record), b"{", kinds, encode(record)])
    assert [*bad] == [1] and slow == [b"{"]
    assert rows(records)[0] == rows(records)[2] == rows(batch_of([record]))[0]
    assert dict(records.kinds) == {1: (("image", 0), ("text", 5))}


@pytest.mark.parametrize("sent", [
    "10", "[]", "{}", "null", '{"a":[]}', '{"a":7}', '{"a":{}}', '{"a":{"b":-1}}', '{"":{"b":1}}',
    '{"a":{"b":1.0}}', '{"a":{"b":true}}', '{"a":{"b":1000000000001}}', '{"a b":{"b":1}}', "{]",
    '{"a":{"b c":1}}', '{"a":{"\u00e9":1}}', '{"a":{"b":1,"b":2}}', '{"a":{"b":1},"a":{}}', "{{}}",
    '{"a":{"b":1},}', '{"a":{"b":01}}', '{ "a":{"b":1}}', '{"a":{"b":1}', '{"\\u0061":{"b":1}}',
])  # fmt: skip
def test_kinds_are_read_as_the_codec_reads_them(sent: str) -> None:
    """This holds for any content, and error texts are equal."""
    plain = encode(Telemetry("chat", "g", "b", 1, 1000, 1000, 0, *[3] * 10))
    data = plain.replace(b'"sent":{}', b'"sent":' + sent.encode())
    records, bad = read_reported([plain, data, plain])
    found = [*rows(records)[1:2], *map(str, bad.values())]
    assert alone(data) in found and len(records) + len(bad) == 3


@settings(deadline=None)
@given(GOOD, st.dictionaries(st.text(), LATER, max_size=3), st.sampled_from([0, 1, 2, 3]))
def test_fields_that_a_later_version_adds_are_ignored(
    data: bytes, more: dict[str, Any], version: int
) -> None:
    """They may have any value and position. The codec ignores them too."""
    wire = orjson.loads(data)
    later = {**more, **wire, **more, "schema_version": version}
    batch = [orjson.dumps(later), data, orjson.dumps(dict(reversed(later.items())))]
    records, bad = read_reported(batch)
    good = iter(rows(records))
    found = [str(bad[at]) if at in bad else next(good) for at in range(len(batch))]
    assert found == [*map(alone, batch)]


@pytest.mark.parametrize("value", [
    "7", "-0.5e-3", "1E+09", '"a b"', '""', "true", "null", "[]", "{}", '[1,[{"a":{}}],"x"]',
    '{"own/a":{"b":[false,-1]},"c":null}',
])  # fmt: skip
def test_records_of_other_versions_use_the_fast_path(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have more fields, or lack optional ones, so gateways can be upgraded in any order."""
    monkeypatch.setattr("streams.ports.telemetry_wire.decode_as", None)
    wire = orjson.loads(encode(Telemetry("chat", "g", "b", 1, 1000, 1000, 0, *[3] * 10)))
    plain, _ = read_reported([orjson.dumps(wire)])
    for left_out in ("withdrawn", "leaving", "sent"):
        del wire[left_out]
    data = orjson.dumps({**wire, "schema_version": 2})
    for begin in range(len(data)):
        if data[begin : begin + 2] == b',"':
            more = data[:begin] + b',"later":' + value.encode() + data[begin:]
            assert rows(read_reported([more])[0]) == rows(plain)


_TRUNCATED = """
from streams.ports import telemetry_wire
from streams.ports.telemetry_wire import read_reported
from topics.codec import encode
from topics.telemetry import Telemetry
sent = {"text": {"own/a": 2}}
data = encode(Telemetry("chat", "g", "b", 1, 1000, 1000, 0, *[3] * 10, ttft_ms={5: 7}, sent=sent))
data = data[:-1] + b',"later":{"a":[-1.5e3,true,{"b":"c"}]},"x":false,"y":[{}]}'
parts = [data[:end] for end in range(len(data))]
for closed in (b"", b"}", b'"}', b"]}", b"e}", b"-}", b".}"):
    for part in parts:
        assert len(read_reported([part + closed])[1]) <= 1
assert len(read_reported([data, *parts])[1]) == len(parts)
"""


def test_a_truncated_record_is_not_read_past_its_end() -> None:
    """Compiled code would read past the end without an error. The interpreter raises one there."""
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    subprocess.run([sys.executable, "-c", _TRUNCATED], env=environment, check=True)


def test_cached_names_do_not_keep_the_rest_of_the_record() -> None:
    """Otherwise every record could make the process keep megabytes of other fields."""
    wire = orjson.loads(encode(Telemetry("chat", "between", "b", 1, 1000, 1000, 0, *[0] * 10)))
    model = wire.pop("model")
    data = orjson.dumps({"model": model, "later": "x" * 10_000, **wire})
    assert not read_reported([data])[1]
    assert not [known for known in telemetry_wire._known if len(known) > 700]


def test_sketches_that_a_later_version_adds_are_left_out() -> None:
    """New sketches come after the known ones."""
    record = Telemetry("chat", "g", "b", 1, 1000, 1000, 0, 1, *[0] * 9, classes={5: 3})
    wire = orjson.loads(encode(record))
    wire["cells"] += NUMBERS[WIDTH * len(SKETCHES)] + NUMBERS[9]
    data = orjson.dumps(wire)
    assert decode("telemetry", data) == record
    windows = TelemetryWindows()
    records, _ = read_reported([data])
    assert windows.add_all(records, np.array([T0_MS])) == 1
    assert dict(windows.all_stats(["chat"], T0_MS, 60)[0][1].classes) == {5: 3}


@pytest.mark.parametrize("cells", ["!!!", "!! !", '!!"!', "!!\\!", "!!é!", "!!\n!", 7, None])
def test_invalid_cells_are_refused_by_name(cells: Any) -> None:
    """The text has a wrong length, or a character that is not a digit."""
    wire = orjson.loads(encode(Telemetry("chat", "g", "b", 1, 1000, 1000, 0, *[0] * 10)))
    with pytest.raises(InvalidValue) as caught:
        decode("telemetry", orjson.dumps({**wire, "cells": cells}))
    assert caught.value.field == "cells"


def test_a_large_count_takes_several_cells() -> None:
    """In a busy second many gateways may add up to such a count in one bucket."""
    record = Telemetry("chat", "g", "b", 1, 1000, 1000, 0, *[0] * 10, ttft_ms={LOWEST: 20_000})
    assert sketches_to_text([record.ttft_ms]).count(NUMBERS[0]) == 3
    assert decode("telemetry", encode(record)) == record


@given(st.dictionaries(st.integers(LOWEST, HIGHEST), st.integers(0, 2**17)))
def test_merged_cells_are_written_as_a_record_writes_its_own(sketch: dict[int, int]) -> None:
    """A bucket may have no, one or several cells."""
    places, counts = np.array([*sketch], np.int64) - LOWEST, np.array([*sketch.values()], np.uint32)
    text = cells_text(places, counts)
    assert text == sketches_to_text([sketch]) and parse_cells(text) is not None


def test_a_count_above_the_limit_of_a_record_is_refused_in_a_batch_too() -> None:
    """A count of 10,000,000 uses as many cells as necessary. A count of one
    more is a dead letter.
    """
    record = Telemetry("chat", "g", "b", 1, 1000, 1000, 0, *[0] * 10, ttft_ms={0: MOST_COUNT})
    full = encode(record)
    wire = orjson.loads(full)
    over = orjson.dumps({**wire, "cells": wire["cells"] + sketches_to_text([{0: 1}])})
    records, bad = read_reported([full, over, full])
    assert [rows(records), str(bad[1])] == [[alone(full)] * 2, alone(over)]


@settings(deadline=None)
@given(st.lists(RECORDS["telemetry"], max_size=6), st.integers(0, 6))
def test_windows_over_batches_equal_windows_over_single_records(
    history: list[Telemetry], looked: int
) -> None:
    """This holds even if the windows are read in between."""
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
        one, other = (windows.all_stats([model], now_ms, 60)[0][1] for windows in (single, batched))
        assert (dict(one.shapes), dict(one.inputs)) == (dict(other.shapes), dict(other.inputs))
