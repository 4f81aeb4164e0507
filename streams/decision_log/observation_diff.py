"""Encode observations as differences from tick to tick, and decode them.

For mappings, only changed entries are written; other fields are written whole if they are not
empty. The fields are those of `Observation`. Writer and reader each keep the last observation.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

import orjson

from autoscaler.state.controller_state import Observation
from streams.decision_log.json_patch import ABSENT, difference, patched
from topics.codec import read_value, write_value

_FIELDS = tuple(field.name for field in dataclasses.fields(Observation))


class ObservationWriter:
    """Encodes observations: `write` returns the changes since the last call, and the first call
    returns everything.
    """

    def __init__(self) -> None:
        self._last: dict[str, dict[str, tuple[object, Any]]] = {}

    def write(self, observation: Observation) -> dict[str, Any]:
        """JSON object of the changes. A reader that has read all earlier objects rebuilds
        `observation`."""
        written: dict[str, Any] = {}
        for name in _FIELDS:
            value = getattr(observation, name)
            if isinstance(value, Mapping):
                patch = self._mapping(self._last.setdefault(name, {}), value)
                if patch:
                    written[name] = patch
            elif value:
                written[name] = orjson.loads(write_value(value))
        return written

    def _mapping(
        self, last: dict[str, tuple[object, Any]], value: Mapping[str, Any]
    ) -> dict[str, Any]:
        changed: dict[str, Any] = {}
        for key, item in value.items():
            known, tree = last.get(key, (None, ABSENT))
            if known is item:
                continue  # an unchanged object, as most statuses are
            new = orjson.loads(write_value(item))
            last[key] = item, new
            found = difference(tree, new)
            if found is not None:
                changed[key] = found
        gone = [key for key in last if key not in value]
        for key in gone:
            del last[key]
        patch: dict[str, Any] = {}
        if changed:
            patch["+"] = changed
        if gone:
            patch["-"] = gone
        return patch


class ObservationReader:
    """Decodes the objects of an observation writer. Pass them to `read` in the order in which they
    were written, because an object contains only differences."""

    def __init__(self) -> None:
        hints = typing.get_type_hints(Observation)
        self._hints = {name: hints[name] for name in _FIELDS}
        self._trees: dict[str, dict[str, Any]] = {}
        self._values: dict[str, dict[str, Any]] = {}

    def read(self, written: Mapping[str, Any]) -> Observation:
        """Decode the next observation. ValueError (or its subclass InvalidValue): the object is
        invalid."""
        found: dict[str, Any] = {}
        for name, hint in self._hints.items():
            if typing.get_origin(hint) is not Mapping:
                if name in written:
                    found[name] = read_value(hint, written[name])
                continue
            trees, values = self._trees.setdefault(name, {}), self._values.setdefault(name, {})
            patch = written.get(name, {})
            for key in patch.get("-", ()):
                trees.pop(key, None)
                values.pop(key, None)
            kind = typing.get_args(hint)[1]
            for key, inner in patch.get("+", {}).items():
                trees[key] = patched(trees.get(key, ABSENT), inner)
                values[key] = read_value(kind, trees[key])
            found[name] = dict(values)
        return Observation(**found)
