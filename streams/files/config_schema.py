"""The JSON Schema of `shoal.yaml`, made from the keys that the reader takes.

Editors complete and check a file with it. The schema accepts every file that the reader accepts.
The reader also checks references between sections, such as the name of an engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streams.files.keys import Either, Group, Key, Named
from streams.files.shoal_yaml import SHOAL_YAML
from streams.files.units import Parser

_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a whole file."""
    return {"$schema": _DRAFT, "title": "shoal.yaml", **_of_group(SHOAL_YAML)}


def _of(value: Group | Named | Either | Parser[Any]) -> dict[str, Any]:
    match value:
        case Group():
            return _of_group(value)
        case Named():
            of = _of(value.of)
            return {"description": value.about, "type": "object", "additionalProperties": of}
        case Either():
            return _of_either(value)
        case Parser():
            return dict(value.schema)


def _of_group(group: Group) -> dict[str, Any]:
    properties: dict[str, Any] = {key.name: _of_key(key) for key in group.keys}
    for name, value in group.groups.items():
        of = _of(value)
        # A section without content (`policy:`) is read like a missing one.
        properties[name] = of if name in group.required else {"anyOf": [of, {"type": "null"}]}
    required = [key.name for key in group.keys if not key.default and not key.otherwise]
    return {
        "description": group.about,
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "required": sorted([*required, *group.required]),
    }


def _of_key(key: Key[Any]) -> dict[str, Any]:
    default = key.default or key.otherwise
    about = f"{key.about} Default: {default}." if default else key.about
    return {**key.parser.schema, "description": about}


def _of_either(either: Either) -> dict[str, Any]:
    schema: dict[str, Any] = _of(either.otherwise)
    cases: Mapping[str, Group | Parser[Any]] = either.cases
    for key, value in reversed(list(cases.items())):
        if isinstance(value, Parser):
            schema = {"anyOf": [_of(value), schema]}
        else:
            schema = {"if": {"required": [key]}, "then": _of(value), "else": schema}
    return {"description": either.about, **schema} if "anyOf" not in schema else schema
