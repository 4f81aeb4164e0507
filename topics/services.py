"""Services declared by operators, in addition to those in the configuration file.

Points in time (fields `..._ms`) are ms of domain time since the epoch (`topics.time_base`).
"""

from __future__ import annotations

from dataclasses import dataclass

from topics import checks

MOST_TEXT = 100_000


@dataclass(frozen=True, slots=True)
class DeclaredService:
    """The current declaration of a model. A tombstone withdraws the model.

    declared: The model's section of `shoal.yaml` as YAML or JSON text, which is checked as strictly
    as the file.
    """

    model: str
    declared: str
    at_ms: int

    def __post_init__(self) -> None:
        checks.name("model", self.model)
        checks.text("declared", self.declared, MOST_TEXT)
        checks.time_ms("at_ms", self.at_ms)
