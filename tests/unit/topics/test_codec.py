"""The wire format: every record decodes to an equal one, and a bad record is refused with its
field.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.state.model_state import PredictionDrift
from streams.ports.telemetry_wire import read_reported
from tests.unit.topics.any_records import ANY, JUNK, RECORDS
from topics import records
from topics.checks import InvalidValue
from topics.codec import MAX_BYTES, decode, encode, read_value
from topics.demand import DemandSecond
from topics.routing import Hop, RoutePath, Stage
from topics.telemetry import COUNTS, LONGEST_SPAN_MS, MOST_PER_S, MOST_REQUESTS_PER_S
from topics.topic_table import TABLE, topic_of

TELEMETRY = records.Telemetry("m", "g", "b", 1, 1000, 1000, 5, *[0] * 10, ttft_ms={7: 1})
STATUS = records.Status(
    "n",
    "p",
    "e",
    1,
    1,
    (
        records.ObservedInstance(
            "i", "m", "decode", "g", records.InstanceState.READY, (0,), "127.0.0.1:1"
        ),
    ),
)


def _changed(record: Any, **fields: Any) -> bytes:
    return orjson.dumps({**orjson.loads(encode(record)), **fields})


def test_every_topic_with_a_record_is_covered_here() -> None:
    """A new topic with a record needs a round-trip test here."""
    assert set(RECORDS) == {topic.name for topic in TABLE}


@given(ANY)
def test_every_record_is_equal_after_a_round_trip(named: tuple[str, Any]) -> None:
    """decode(encode(x)) == x, including the types of numbers."""
    name, record = named
    back = decode(name, encode(record))
    assert back == record
    assert repr(back) == repr(record)
    assert topic_of(record).name == name


@given(ANY, st.text(max_size=5).map(lambda s: "new_" + s), JUNK)
def test_unknown_fields_are_ignored(named: tuple[str, Any], field: str, value: Any) -> None:
    """A reader of this version accepts records of the next version."""
    name, record = named
    wire = orjson.loads(encode(record))
    assert decode(name, orjson.dumps({**wire, field: value, "schema_version": 2})) == record


@given(ANY, st.data(), JUNK)
def test_any_value_in_any_field_is_accepted_or_refused_by_name(
    named: tuple[str, Any], data: st.DataObject, value: Any
) -> None:
    """A refused value raises only InvalidValue, which names a field."""
    name, record = named
    field = data.draw(st.sampled_from([f.name for f in dataclasses.fields(record)]))
    try:
        back = decode(name, _changed(record, **{field: value}))
    except InvalidValue as error:
        assert error.field
        assert error.allowed
    else:
        assert type(back) is type(record)


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    """Arbitrary bytes raise only InvalidValue."""
    for name in RECORDS:
        with pytest.raises(InvalidValue):
            decode(name, data)


@given(ANY, st.data())
@settings(max_examples=200)
def test_a_missing_field_gets_its_default_or_is_refused_by_name(
    named: tuple[str, Any], data: st.DataObject
) -> None:
    """The error has the name of the missing field."""
    name, record = named
    wire = orjson.loads(encode(record))
    packed = getattr(record, "packed_fields", ())
    field = data.draw(
        st.sampled_from([f for f in dataclasses.fields(record) if f.name not in packed])
    )
    del wire[field.name]
    bare = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    if bare:
        with pytest.raises(InvalidValue, match="missing") as caught:
            decode(name, orjson.dumps(wire))
        assert caught.value.field == field.name
    else:
        made = field.default_factory
        default = field.default if made is dataclasses.MISSING else made()
        assert getattr(decode(name, orjson.dumps(wire)), field.name) == default


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"sequence": True}, "sequence"),
        ({"sequence": 1.0}, "sequence"),
        ({"sequence": "1"}, "sequence"),
        ({"sequence": None}, "sequence"),
        ({"sequence": -1}, "sequence"),
        ({"sequence": 10**13}, "sequence"),
        ({"end_ms": 1_763_000_000_000_000}, "end_ms"),
        ({"model": "a b"}, "model"),
        ({"model": "a\n"}, "model"),
        ({"model": ""}, "model"),
        ({"model": "x" * 201}, "model"),
        ({"schema_version": 3}, "schema_version"),
        ({"schema_version": -1}, "schema_version"),
        ({"schema_version": "1"}, "schema_version"),
        ({"schema_version": True}, "schema_version"),
    ],
)
def test_a_bad_value_is_refused_with_its_field(fields: dict[str, Any], named: str) -> None:
    """The message names the field, the value and the allowed range."""
    with pytest.raises(InvalidValue, match="allowed") as caught:
        decode("telemetry", _changed(TELEMETRY, **fields))
    assert caught.value.field == named


@pytest.mark.parametrize("span_ms", [0, 1, 1000, 1001, LONGEST_SPAN_MS])
@pytest.mark.parametrize("field", [*COUNTS, "withdrawn"])
def test_a_count_above_the_limit_of_its_seconds_is_refused(field: str, span_ms: int) -> None:
    """Both readers of telemetry refuse it, because no plan could use such a rate."""
    most = (*MOST_PER_S, MOST_REQUESTS_PER_S)[[*COUNTS, "withdrawn"].index(field)]
    most *= max(1, -(-span_ms // 1000))
    right, wrong = (_changed(TELEMETRY, span_ms=span_ms, **{field: most + k}) for k in range(2))
    with pytest.raises(InvalidValue) as caught:
        decode("telemetry", wrong)
    assert caught.value.field == field
    found, bad = read_reported([right, wrong])
    assert len(found) == 1 and bad[1].field == field
    assert decode("telemetry", right)


@pytest.mark.parametrize("value", [{"a": 1}, {"1_0": 1}, {"1": 1, "01": 1}, {"1": 1.0}, []])
def test_keys_of_counts_are_distinct_whole_numbers(value: Any) -> None:
    with pytest.raises(InvalidValue, match="allowed"):
        read_value(dict[int, int], value)


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e400", b"null"])
def test_numbers_that_are_not_finite_are_refused(number: bytes) -> None:
    """Other writers may accept them as JSON."""
    data = encode(records.Price("p", 1.5, 1)).replace(b"1.5", number)
    assert number in data
    with pytest.raises(InvalidValue):
        decode("supply.prices", data)


def test_a_whole_number_is_accepted_for_a_fraction() -> None:
    """JSON has one kind of number, so a price of 2 equals 2.0."""
    found = decode("supply.prices", encode(records.Price("p", 2.0, 1)).replace(b"2.0", b"2"))
    assert isinstance(found.usd_per_node_h, float)
    assert found.usd_per_node_h == 2.0


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"gpus": [0, True]}, "instances[0].gpus[1]"),
        ({"gpus": [64]}, "instances[0].gpus"),
        ({"state": "dancing"}, "instances[0].state"),
        ({"phase": "both"}, "instances[0].phase"),
        ({"restarts": -1}, "instances[0].restarts"),
    ],
)
def test_a_nested_field_is_named_by_its_path(change: dict[str, Any], named: str) -> None:
    """The path names the instance within the record."""
    wire = orjson.loads(encode(STATUS))
    wire["instances"][0].update(change)
    with pytest.raises(InvalidValue) as caught:
        decode("status", orjson.dumps(wire))
    assert caught.value.field == named


def test_routes_without_slots_have_no_limit() -> None:
    """Records in a topic may be older than the running version."""
    ends = (records.Endpoint("i", "h:1", slots=7),)
    new = records.Routes("m", 1, 1, 0, 1.0, 1.0, (records.RouteGroup("g", 1.0, ends),))
    data = encode(new)
    assert decode("routes", data).groups[0].aggregated[0].slots == 7
    old = data.replace(b',"slots":7', b"")
    assert old != data
    assert decode("routes", old).groups[0].aggregated == (records.Endpoint("i", "h:1"),)


def test_a_record_that_is_too_large_is_refused_before_it_is_read() -> None:
    """A single foreign record must not exhaust the memory."""
    with pytest.raises(InvalidValue, match="at most"):
        decode("status", b" " * (MAX_BYTES + 1))


def test_an_unknown_topic_is_refused_by_name() -> None:
    with pytest.raises(InvalidValue, match="nonsense"):
        decode("nonsense", b"{}")


def test_floats_keep_their_last_bit() -> None:
    """The value of 0.1 + 0.2 is not rounded."""
    odd = 0.1 + 0.2
    assert decode("supply.prices", encode(records.Price("p", odd, 1))).usd_per_node_h == odd
    assert math.isfinite(odd)


def test_a_predicted_start_time_of_zero_is_refused() -> None:
    """Learnt start times are divided by the prediction."""
    assert (
        PredictionDrift() == PredictionDrift(0.0, 0.0)
        and PredictionDrift(60.0, 1.0).start_s == 60.0
    )
    with pytest.raises(InvalidValue, match=r"start_s: .*60.* allowed; allowed: 0 where predicted"):
        PredictionDrift(60.0, 0.0)


def test_a_type_has_one_share_per_group() -> None:
    """Otherwise a reader could not assign the shares to groups."""
    groups = (records.RouteGroup("g", 1.0, (records.Endpoint("i", "h:1"),)),)
    kind = records.TypeRoute("long", 4000.0, 80.0, (1.0,))
    routes = records.Routes("m", 1, 1, 0, 1.0, 1.0, groups, types=(kind,))
    assert decode("routes", encode(routes)) == routes
    with pytest.raises(InvalidValue, match=r"types.shares: 2 is not allowed; allowed: one per"):
        dataclasses.replace(routes, types=(dataclasses.replace(kind, shares=(0.5, 0.5)),))


def test_a_path_goes_through_stages_of_its_group() -> None:
    """A gateway must find an instance for every hop."""
    stage = Stage("llm", (records.Endpoint("i", "h:1"),))
    path = RoutePath("text", 2.0, (Hop("llm", ("llm",)),))
    group = records.RouteGroup("g", 2.0, stages=(stage,), paths=(path,))
    kinds = (records.RequestKind("text"), records.RequestKind("photo", ("image",)))
    routes = records.Routes("m", 1, 1, 0, 1.0, 1.0, (group,), kinds=kinds)
    assert decode("routes", encode(routes)) == routes
    lost = RoutePath("text", 2.0, (Hop("talker", ("talker",)),))
    with pytest.raises(InvalidValue, match=r"paths: 'talker' is not allowed; allowed: stages of"):
        dataclasses.replace(group, paths=(lost,))
    with pytest.raises(InvalidValue, match=r"media: 'smell' is not allowed; allowed: image or"):
        records.RequestKind("odd", ("smell",))


def test_records_with_sketches_of_an_older_format_are_refused() -> None:
    """Without their sketches, half of their information would be lost without notice."""
    of_second = DemandSecond(1000, (1,) * 8, "")
    merged = records.Demand("m", 0, 1, (of_second,), ())
    for name, record, field in (
        ("telemetry", TELEMETRY, "cells"),
        ("demand", merged, "seconds[0].cells"),
    ):
        wire = orjson.loads(encode(record))
        one = wire["seconds"][0] if "seconds" in wire else wire
        del one["cells"]
        with pytest.raises(InvalidValue, match="the field is missing") as caught:
            decode(name, orjson.dumps({**wire, "ttft_ms": {"7": 1}}))
        assert caught.value.field == field
