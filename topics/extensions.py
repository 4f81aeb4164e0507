"""Extensions: objects that installed packages add to Shoal by entry points.

docs/reference/extensions.md shows one of each kind. An object that cannot be loaded is an error
that names its package, so that no process runs without a part that its operator installed.
Installed packages are looked up once per process.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.metadata import entry_points
from typing import Any, TypeVar

from topics.checks import InvalidValue
from topics.error_text import error_text

T = TypeVar("T")


class Group(StrEnum):
    """The groups of entry points, each with its kind of object."""

    POLICIES = "shoal.policies"
    TRIGGERS = "shoal.triggers"
    SIZING_RULES = "shoal.sizing_rules"
    ENGINES = "shoal.engines"


@dataclass(frozen=True, slots=True)
class Extension:
    """One object. name: of its entry point. package: name and version of the package."""

    name: str
    package: str
    value: Any


@cache
def extensions(group: Group) -> tuple[Extension, ...]:
    """The installed extensions of `group`, by name. Raises InvalidValue if one cannot be
    loaded."""
    return tuple(_load(group, point) for point in sorted(entry_points(group=group)))


def _load(group: Group, point: Any) -> Extension:
    package = f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown package"
    try:
        return Extension(point.name, package, point.load())
    except Exception as error:
        where = f"{group}: {point.name} of {package}"
        raise InvalidValue(where, error_text(error, "error"), "an object to import") from error


def call(extension: Extension, run: Callable[[Any], T], default: T) -> T:
    """`run` with the extension's object. If it raises, the result is `default` and a RuntimeWarning
    names the extension: a rule of another package must not end the control loop."""
    try:
        return run(extension.value)
    except Exception as error:
        what = f"extension {extension.name} of {extension.package} failed, its result is left out"
        warnings.warn(f"{what}: {error_text(error, 'error')}", RuntimeWarning, stacklevel=2)
        return default
