"""The keys of a configuration file as values: name, parser, meaning and default.

Readers take values through keys. `config_schema` makes the JSON Schema and the reference from the
same keys, so every readable key is described.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import yaml

from streams.files.units import Parser
from streams.files.yaml_tree import Section

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class Key(Generic[T]):
    """One key that holds a value or a list.

    about: its meaning in one line. default: the value without the key, as written in a file.
    otherwise: the effect of a missing key, if no written value expresses it. A key with neither is
    required. advanced: whether few users need it.
    """

    name: str
    parser: Parser[T]
    about: str
    default: str = ""
    otherwise: str = ""
    advanced: bool = False

    def take(self, section: Section) -> T:
        """The value in `section`, or the default. ConfigError: the value is invalid, or a required
        key is missing."""
        if not self.default:
            return section.take(self.name, self.parser)
        return section.take(self.name, self.parser, self.default_value())

    def take_or(self, section: Section, fallback: U) -> T | U:
        """The value in `section`, or `fallback` if the key is missing."""
        return section.take(self.name, self.parser, fallback)

    def default_value(self) -> T:
        """The value of the written default."""
        return self.parser(yaml.safe_load(self.default))


@dataclass(frozen=True, slots=True)
class Group:
    """The keys of one mapping.

    about: its content in one line. groups: keys whose value is a mapping, or a mapping by name.
    required: names in `groups` that must be present. removed: keys of earlier versions, each with a
    hint for its replacement.
    """

    about: str
    keys: tuple[Key[Any], ...]
    groups: Mapping[str, Group | Named | Either] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    removed: Mapping[str, str] = field(default_factory=dict)

    def finish(self, section: Section) -> None:
        """Refuse the keys of `section` that are unknown or that earlier versions had."""
        for key, hint in self.removed.items():
            if key in section:
                raise section.error(key, f"is no key any more; {hint}")
        section.know(*(key.name for key in self.keys), *self.groups)
        section.finish()


@dataclass(frozen=True, slots=True)
class Named:
    """A mapping whose names the user chooses. of: the value of each name."""

    about: str
    of: Group | Named | Either | Parser[Any]


@dataclass(frozen=True, slots=True)
class Either:
    """A mapping that takes one of several forms.

    The first case whose key is present counts, else `otherwise`. A case with the key "" is a single
    value instead of a mapping.
    """

    about: str
    cases: Mapping[str, Group | Parser[Any]]
    otherwise: Group
