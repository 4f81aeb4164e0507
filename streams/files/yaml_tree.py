"""Read YAML strictly, with the line number of every value.

Builds `Section`s. Errors name file, line and key: a duplicate key, an unknown key (with the nearest
valid name), a value of the wrong kind. `streams.files.shoal_yaml` interprets the keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

import yaml

from autoscaler.domain.validation import InvalidValue
from streams.files.user_errors import UserError, first_line
from topics.plainyaml import PlainLoader

USUAL_NAME = "shoal.yaml"
"""Name of the file that commands read if no other is named."""
T = TypeVar("T")
_MISSING = object()
_MOST = 60
_MOST_OF_TEXT = 500
"""Maximum number of characters of a value that a message shows."""


_INT = re.compile(r"[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F][0-9a-fA-F_]*|0b[01][01_]*)\Z")
_FLOAT = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?"
    r"|[0-9][0-9_]*[eE][-+]?[0-9]+|\.(?:inf|Inf|INF))\Z|\.(?:nan|NaN|NAN)\Z"
)


def _resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    """Resolvers of plain scalars, with numbers as in JSON.

    YAML 1.1 reads 5e-5 as text, 010 as 8, and 1:30 as 90. These resolvers read 5e-5 as a number,
    and 010 and 1:30 as text.
    """
    known = yaml.SafeLoader.yaml_implicit_resolvers
    numbers = {"tag:yaml.org,2002:int": _INT, "tag:yaml.org,2002:float": _FLOAT}
    return {
        first: [(tag, numbers.get(tag, pattern)) for tag, pattern in found]
        for first, found in known.items()
    }


class _Loader(PlainLoader):
    yaml_implicit_resolvers = _resolvers()


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers = _resolvers()


class ConfigError(UserError):
    """Invalid configuration file; the text is `FILE:LINE: KEY: problem`."""

    def __init__(self, file: str, line: int, key: str, problem: str) -> None:
        where = f"{file}:{line}" if line else file
        super().__init__(f"{where}: {key}: {problem}" if key else f"{where}: {problem}")
        self.file, self.line, self.key = file, line, key


class Section:
    """One mapping of the file. Callers take the known keys by name; `finish()` then refuses all
    other keys."""

    def __init__(self, file: str, path: str, node: yaml.MappingNode) -> None:
        self.file = file
        self.path = path
        self.line = node.start_mark.line + 1
        self._node = node
        self._values: dict[str, yaml.Node] = {}
        self._lines: dict[str, int] = {}
        self._asked: list[str] = []
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise ConfigError(file, line, path, "a key must be a plain word")
            key = str(key_node.value)
            if key in self._values:
                first = self._lines[key]
                raise ConfigError(
                    file, line, self._key(key), f"is given twice (first in line {first})"
                )
            self._values[key] = value_node
            self._lines[key] = line

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def is_mapping(self, key: str) -> bool:
        """Whether the value at `key` is a mapping."""
        return isinstance(self._values.get(key), yaml.MappingNode)

    def line_of(self, key: str) -> int:
        """Line of a key, or of the section if the key is missing."""
        return self._lines.get(key, self.line)

    def error(self, key: str, problem: str) -> ConfigError:
        """An error at `key` of this section."""
        return ConfigError(self.file, self.line_of(key), self._key(key), problem)

    def take(self, key: str, parse: Callable[[object], T], default: object = _MISSING) -> T:
        """The value of a scalar or list at `key`, parsed with `parse`; InvalidValue becomes a
        ConfigError."""
        self._asked.append(key)
        if key not in self._values:
            if default is _MISSING:
                raise self._missing(key, "is missing")
            return default  # type: ignore[return-value]
        node = self._values[key]
        if isinstance(node, yaml.MappingNode):
            raise self.error(key, "a single value is expected, not a mapping")
        try:
            value = _Loader.construct_object(_loader(), node, deep=True)
        except yaml.YAMLError as error:
            raise self.error(key, first_line(error)) from None
        except (ValueError, LookupError, AttributeError, TypeError):  # such as `!!bool maybe`
            raise self.error(key, _unreadable(node)) from None
        try:
            return parse(value)
        except InvalidValue as error:
            shown = _shown(error.value)
            raise self.error(key, f"{shown} is not allowed; allowed: {error.allowed}") from error
        except (ValueError, OverflowError):  # A whole number is too large to convert.
            raise self.error(key, _unreadable(node)) from None

    def section(self, key: str, required: bool = False) -> Section | None:
        """The mapping at `key`; None if the key is missing. ConfigError: the key is missing but
        required."""
        self._asked.append(key)
        node = self._values.get(key)
        empty = isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null")
        if node is None or empty:
            if required:
                raise self._missing(key, "is missing or empty")
            return None
        if not isinstance(node, yaml.MappingNode):
            raise self.error(key, "a mapping is expected")
        return Section(self.file, self._key(key), node)

    def children(self) -> Iterator[tuple[str, Section]]:
        """Every entry as a section, for mappings by name such as regions and models."""
        for name in self._values:
            child = self.section(name, required=True)
            assert child is not None  # noqa: S101  required=True raised otherwise
            yield name, child

    def as_yaml(self) -> str:
        """This mapping alone as YAML text, with its values as written."""
        return str(yaml.serialize(self._node, Dumper=_Dumper))

    def know(self, *keys: str) -> None:
        """Accept `keys` in `finish` and in its hints, even if no caller took them."""
        self._asked.extend(key for key in keys if key not in self._asked)

    def finish(self) -> None:
        """Refuse every key that was not taken, with the nearest valid name."""
        for key in self._values:
            if key not in self._asked:
                near = get_close_matches(key, self._asked, n=1, cutoff=0.6)
                hint = f"did you mean {near[0]}?" if near else "allowed: " + ", ".join(self._asked)
                raise self.error(key, f"unknown key; {hint}")

    def _missing(self, key: str, problem: str) -> ConfigError:
        """Error for a missing required key; suggests a similar key that is present."""
        strangers = [name for name in self._values if name not in self._asked]
        near = get_close_matches(key, strangers, n=1, cutoff=0.6)
        if near:
            return self.error(near[0], f"unknown key; did you mean {key}?")
        return ConfigError(self.file, self.line_of(key), self._key(key), problem)

    def _key(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key


def _shown(value: object) -> str:
    """`value` as text for messages; a long value is cut."""
    text = repr(value)
    most = _MOST_OF_TEXT if isinstance(value, str) else _MOST
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _unreadable(node: yaml.Node) -> str:
    """Error text for a value that does not match its YAML tag."""
    if not isinstance(node, yaml.ScalarNode):
        return "an entry cannot be read as what it is tagged or looks like"
    text = node.value if len(node.value) <= _MOST else f"{node.value[: _MOST - 3]}..."
    return f"{text!r} cannot be read as {node.tag.rsplit(':', 1)[-1]}"


def _syntax_error(error: yaml.MarkedYAMLError) -> str:
    """The fault that the parser reports, with the place that it belongs to."""
    said = error.problem or error.context or "unreadable"
    begun, at = error.context_mark, error.problem_mark
    if at is not None and at.buffer is not None and at.buffer[at.pointer : at.pointer + 1] == "\t":
        return "a tab; indent with spaces"
    if isinstance(error, yaml.parser.ParserError) and begun is not None:
        if begun.buffer is not None and begun.buffer[begun.pointer : begun.pointer + 1] in "[{":
            opened = begun.buffer[begun.pointer]
            return f"the {opened} on line {begun.line + 1} is not closed before this ({said})"
        return f"its indentation fits no line above ({said})"
    return said


def _loader() -> _Loader:
    return _Loader("")


def read(path: Path, expected: str = "regions and models") -> tuple[Section, bytes]:
    """Root section of a YAML file, and the bytes of the file.

    expected: the expected content, named in the message if the file is empty.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        hint = "; name one with --config FILE, or write one with `shoal config init`"
        is_usual = str(path) == USUAL_NAME
        raise UserError(f"{path}: no such file{hint if is_usual else ''}") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a folder; the name of a file is expected") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or first_line(error)
        raise UserError(f"{path}: cannot be read ({why})") from error
    return read_text(raw, str(path), expected), raw


def read_text(raw: bytes, name: str, expected: str) -> Section:
    """Root section of YAML text. name: name of its source in messages."""
    try:
        node = yaml.compose(raw.decode("utf-8"), Loader=_Loader)
    except UnicodeDecodeError:
        raise ConfigError(name, 0, "", "is not UTF-8 text, so it is no YAML") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = f"is not YAML: {_syntax_error(error)}"
        raise ConfigError(name, mark.line + 1 if mark else 0, "", problem) from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(name, 0, "", f"is not YAML: {first_line(error)}") from None
    if node is None:
        raise ConfigError(name, 0, "", f"is empty; {expected} are expected")
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(
            name,
            node.start_mark.line + 1,
            "",
            f"a mapping is expected, with {expected}",
        )
    return Section(name, "", node)
