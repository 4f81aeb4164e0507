"""Telemetry as windows count it: read fast, with sketches still packed.

Owns the quick way from the wire for the one topic that carries thousands of records a second. What
does not have exactly the expected form goes the slow way through `codec`, which takes it or says
what is wrong with it.
"""

from __future__ import annotations

from binascii import a2b_base64
from operator import attrgetter, itemgetter
from typing import NamedTuple

import orjson

from topics import checks
from topics.checks import MAX_COUNT, MAX_MS, SCHEMA_VERSION
from topics.codec import decode_as
from topics.sketch import PAIR_BYTES, pack
from topics.telemetry import COUNTS, SKETCHES, Telemetry

_NUMBERS = (*COUNTS, "sequence", "span_ms", "age_ms", "in_flight", "route_generation")
_MOST_SPAN_MS = 3_600_000
_MOST_NAMES = 100_000
_numbers = itemgetter(*_NUMBERS)
_texts = itemgetter(*SKETCHES)
_names = itemgetter("model", "gateway", "boot")
_count_of = attrgetter(*COUNTS)
_N = len(COUNTS)
_INTEGERS = {int}
_known: set[tuple[str, str, str]] = set()


class Reported(NamedTuple):
    """A record of `Telemetry`. values: of COUNTS; sketches: of SKETCHES, packed; kinds: requests
    sent, by their kind."""

    model: str
    gateway: str
    boot: str
    sequence: int
    span_ms: int
    age_ms: int
    in_flight: int
    route_generation: int
    leaving: bool
    values: tuple[int, ...]
    sketches: tuple[bytes, ...]
    kinds: tuple[tuple[str, int], ...] = ()


def reported(record: Telemetry) -> Reported:
    """`record` as windows count it."""
    return Reported(
        record.model, record.gateway, record.boot, record.sequence, record.span_ms, record.age_ms,
        record.in_flight, record.route_generation, record.leaving, _count_of(record),
        tuple(pack(getattr(record, name)) for name in SKETCHES),
        tuple(sorted((kind, sum(ways.values())) for kind, ways in record.sent.items())),
    )  # fmt: skip


def read_reported(data: bytes) -> Reported:
    """The record on the wire; InvalidRecord as of `codec.decode`."""
    try:
        value = orjson.loads(data)
        numbers, texts, names = _numbers(value), _texts(value), _names(value)
        span_ms = numbers[_N + 1]
        if (
            value["schema_version"] != SCHEMA_VERSION
            or set(map(type, numbers)) != _INTEGERS
            or min(numbers) < 0
            or max(numbers) > MAX_COUNT
            or span_ms > _MOST_SPAN_MS
            or value.get("sent")  # few models have kinds of requests
        ):
            return _slowly(data)
        end_ms = value["end_ms"]
        if type(end_ms) is not int or not 0 <= end_ms <= MAX_MS:
            return _slowly(data)
        leaving = value.get("leaving", False)
        if names not in _known:
            _learn(names)
        if leaving is not False and leaving is not True:
            return _slowly(data)
        packed = tuple([a2b_base64(text, strict_mode=True) for text in texts])
    except (KeyError, TypeError, ValueError):  # of orjson and base64 too
        return _slowly(data)
    for one in packed:
        if len(one) % PAIR_BYTES:
            return _slowly(data)
    sequence, span_ms, age_ms, in_flight, route_generation = numbers[_N:]
    model, gateway, boot = names
    return Reported(
        model, gateway, boot, sequence, span_ms, age_ms, in_flight, route_generation, leaving,
        numbers[:_N], packed,
    )  # fmt: skip


def _slowly(data: bytes) -> Reported:
    return reported(decode_as(Telemetry, data))


def _learn(names: tuple[str, str, str]) -> None:
    for field, name in zip(("model", "gateway", "boot"), names, strict=True):
        checks.name(field, name)
    if len(_known) >= _MOST_NAMES:
        _known.clear()
    _known.add(names)
