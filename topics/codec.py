"""Encode and decode records as JSON with orjson: strict in types, lenient in unknown fields.

The wire form is an object with `schema_version` and the record's fields by name. A record checks
its own bounds when it is created. Errors are InvalidValue with the path of the field
("instances[0].gpus").
"""

from __future__ import annotations

import collections.abc
import dataclasses
import math
import types
import typing
from collections.abc import Callable
from enum import Enum
from typing import Any

import orjson

from topics.checks import SCHEMA_VERSION, InvalidValue
from topics.sketch import sketches_from_text, sketches_to_text
from topics.topic_table import topic

MAX_BYTES = 4 * 1024 * 1024
CELLS = "cells"
"""The wire field that holds all `packed_fields` of a record."""
OLDEST, NEWEST = SCHEMA_VERSION - 1, SCHEMA_VERSION + 1
"""The schema versions that `decode` accepts."""
_PREFIX = b'{"schema_version":%d,' % SCHEMA_VERSION
_MISSING = object()
_VALUES = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
_READERS: dict[Any, Callable[[str, Any], Any]] = {}

Reader = Callable[[str, Any], Any]


def encode(record: Any) -> bytes:
    """The wire form (JSON) of a record, which is a dataclass with at least one field."""
    packed = getattr(record, "packed_fields", ())
    if packed:
        cells = sketches_to_text(getattr(record, name) for name in packed)
        names = (field.name for field in dataclasses.fields(record) if field.name not in packed)
        record = {**{name: getattr(record, name) for name in names}, CELLS: cells}
    return _PREFIX + orjson.dumps(record, option=orjson.OPT_NON_STR_KEYS)[1:]


def decode(name: str, data: bytes) -> Any:
    """The record in `data`, read from the topic with the short name `name`.

    Unknown fields are ignored at every depth. Raises InvalidValue for text that is not JSON, an
    unsupported schema version, a missing field, a wrong type or an invalid value.
    """
    return decode_as(topic(name).record, data)


def decode_as(kind: type[Any], data: bytes) -> Any:
    """The record of type `kind` in `data`. Raises InvalidValue as `decode` does."""
    if len(data) > MAX_BYTES:
        raise InvalidValue("record", f"{len(data)} bytes", f"at most {MAX_BYTES} bytes")
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InvalidValue("record", data[:40], f"JSON ({error})") from None
    if not isinstance(value, dict):
        raise InvalidValue("record", value, "a JSON object")
    version = value.get("schema_version", _MISSING)
    if version is _MISSING:
        raise InvalidValue("schema_version", "nothing", "a value: the field is missing")
    if type(version) is not int or not OLDEST <= version <= NEWEST:
        raise InvalidValue("schema_version", version, f"{OLDEST} to {NEWEST}")
    return _reader(kind)("", value)


def read_value(kind: Any, value: Any) -> Any:
    """A value of dataclass `kind` from parsed JSON, as strict as `decode` but without a schema
    version.

    It is meant for pipes between processes of one version, and for files that a process wrote
    itself. In addition to the types of records, `read_value` accepts mappings with any key, sets,
    and unions of dataclasses and None; the dataclasses of a union are distinguished by their field
    names. Raises InvalidValue as `decode` does.
    """
    return _reader(kind)("", value)


def write_value(value: Any) -> bytes:
    """`value` as JSON, from which `read_value` makes an equal value. Sets are written sorted."""
    return orjson.dumps(value, default=_write_collection, option=_VALUES)


def _write_collection(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, collections.abc.Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _reader(kind: Any) -> Reader:
    """A function (path, JSON value) -> value of type `kind`, built once per type."""
    known = _READERS.get(kind)
    if known is None:
        # Look up the inner reader only when it is called, so that a type may contain itself.
        _READERS[kind] = lambda path, value: _READERS[kind](path, value)
        known = _READERS[kind] = _make_reader(kind)
    return known


def _make_reader(kind: Any) -> Reader:
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _dataclass_reader(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum_reader(kind)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple and len(arguments) == 2 and arguments[1] is ...:
        return _sequence_reader(_reader(arguments[0]))
    if origin is tuple:
        return _fixed_reader(tuple(_reader(argument) for argument in arguments))
    if origin in (dict, collections.abc.Mapping):
        return _dict_reader(_key_reader(arguments[0]), _reader(arguments[1]))
    if origin is frozenset:
        items = _sequence_reader(_reader(arguments[0]))
        return lambda path, value: frozenset(items(path, value))
    if origin in (types.UnionType, typing.Union):
        return _union_reader(arguments)
    return _SCALARS[kind]


def _key_reader(kind: Any) -> Reader:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum_reader(kind)
    return _KEYS[kind]


def _union_reader(kinds: tuple[Any, ...]) -> Reader:
    """A reader for a union of `kinds`; at most one kind is neither a dataclass nor None."""
    objects = [kind for kind in kinds if dataclasses.is_dataclass(kind)]
    others = [kind for kind in kinds if kind is not types.NoneType and kind not in objects]
    if len(others) > 1:
        raise TypeError(f"{kinds}: such a union has no JSON form")
    named = [({field.name for field in dataclasses.fields(k)}, _reader(k)) for k in objects]
    other = _reader(others[0]) if others else None

    def read(path: str, value: Any) -> Any:
        if value is None and types.NoneType in kinds:
            return None
        if type(value) is dict and named:
            _, reader = max(named, key=lambda one: len(one[0] & value.keys()) / len(one[0]))
            return reader(path, value)
        if other is None:
            raise InvalidValue(path, value, "a JSON object")
        return other(path, value)

    return read


def _dataclass_reader(kind: type[Any]) -> Reader:
    hints = typing.get_type_hints(kind)
    fields = tuple(
        (
            field.name,
            _reader(hints[field.name]),
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
        )
        for field in dataclasses.fields(kind)
        if field.init
    )
    packed = getattr(kind, "packed_fields", ())

    def read(path: str, value: Any) -> Any:
        if type(value) is not dict:
            raise InvalidValue(path or "record", value, "a JSON object")
        dot = f"{path}." if path else ""
        found = {}
        if packed:
            if CELLS not in value:
                raise InvalidValue(dot + CELLS, "nothing", "a value: the field is missing")
            sketches = sketches_from_text(dot + CELLS, value[CELLS], len(packed))
            found = dict(zip(packed, sketches, strict=True))
        for name, reader, required in fields:
            if name in found:
                continue
            item = value.get(name, _MISSING)
            if item is not _MISSING:
                found[name] = reader(dot + name, item)
            elif required:
                raise InvalidValue(dot + name, "nothing", "a value: the field is missing")
        try:
            return kind(**found)
        except InvalidValue as error:
            if not dot:
                raise
            raise InvalidValue(dot + error.field, error.value, error.allowed) from None

    return read


def _enum_reader(kind: type[Enum]) -> Reader:
    members = {member.value: member for member in kind}

    def read(path: str, value: Any) -> Any:
        found = members.get(value) if isinstance(value, str) else None
        if found is None:
            raise InvalidValue(path, value, " or ".join(map(str, members)))
        return found

    return read


def _sequence_reader(item: Reader) -> Reader:
    def read(path: str, value: Any) -> Any:
        if type(value) is not list:
            raise InvalidValue(path, value, "a JSON array")
        return tuple([item(f"{path}[{index}]", entry) for index, entry in enumerate(value)])

    return read


def _fixed_reader(items: tuple[Reader, ...]) -> Reader:
    def read(path: str, value: Any) -> Any:
        if type(value) is not list or len(value) != len(items):
            raise InvalidValue(path, value, f"a JSON array of {len(items)}")
        return tuple([item(path, entry) for item, entry in zip(items, value, strict=True)])

    return read


def _dict_reader(key: Reader, item: Reader) -> Reader:
    def read(path: str, value: Any) -> Any:
        if type(value) is not dict:
            raise InvalidValue(path, value, "a JSON object")
        found = {key(path, name): item(f"{path}[{name[:40]}]", v) for name, v in value.items()}
        if len(found) != len(value):  # two keys are the same number, such as "7" and "07"
            raise InvalidValue(path, value, "each key once")
        return found

    return read


def _integer_key(path: str, value: str) -> int:
    # Stricter than int(), which also accepts "1_0", " 1" and digits of other scripts.
    digits = value[1:] if value.startswith("-") else value
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        raise InvalidValue(path, value, "whole numbers as keys")
    return int(value)


def _integer(path: str, value: Any) -> int:
    if type(value) is not int:
        raise InvalidValue(path, value, "a whole number")
    return value


def _real(path: str, value: Any) -> float:
    if type(value) is int:
        return float(value)
    if type(value) is not float or not math.isfinite(value):
        raise InvalidValue(path, value, "a finite number")
    return value


def _string(path: str, value: Any) -> str:
    if type(value) is not str:
        raise InvalidValue(path, value, "text")
    return value


def _boolean(path: str, value: Any) -> bool:
    if type(value) is not bool:
        raise InvalidValue(path, value, "true or false")
    return value


_SCALARS: dict[Any, Reader] = {int: _integer, float: _real, str: _string, bool: _boolean}
_KEYS: dict[Any, Reader] = {int: _integer_key, str: _string}
