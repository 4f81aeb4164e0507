"""Services declared by operators, in addition to those in the configuration file, and the versions
of these declarations.

Points in time (fields `..._ms`) are ms of domain time since the epoch (`topics.time_base`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from topics import checks

MOST_TEXT = 100_000
MOST_NAMES = 10_000


@dataclass(frozen=True, slots=True)
class DeclaredService:
    """The current declaration of a model, or its withdrawal. A tombstone does not withdraw a model:
    the leader deletes the key of a withdrawn model once nothing uses its name.

    declared: The model's section of `shoal.yaml` as YAML or JSON text, which is checked as strictly
    as the file; "" in a withdrawal. version: Each record of a model has a higher version than
    earlier records of all models. Readers refuse a lower one. withdrawn: Whether the model is no
    longer declared.
    """

    model: str
    declared: str
    at_ms: int
    version: int = 0
    withdrawn: bool = False

    def __post_init__(self) -> None:
        checks.name("model", self.model)
        checks.text("declared", self.declared, MOST_TEXT)
        checks.time_ms("at_ms", self.at_ms)
        checks.time_ms("version", self.version)
        checks.flag("withdrawn", self.withdrawn)


@dataclass(frozen=True, slots=True)
class FinalizedNames:
    """The versions of declarations, after names were finalized.

    version: The highest finalized version. A declaration with this or a lower version counts only
    if `declared` has it. declared: By model, the version of each other record of `services`.
    """

    version: int
    declared: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checks.time_ms("version", self.version)
        checks.count("declared", len(self.declared), MOST_NAMES)
        for model, version in self.declared.items():
            checks.name("declared", model)
            checks.time_ms(f"declared.{model}", version)
