"""Records of alerts from an alerting system.

Points in time (fields `..._ms`) are ms of domain time since the epoch (`topics.time_base`).
"""

from __future__ import annotations

from dataclasses import dataclass

from topics import checks

STATES = ("firing", "resolved")


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert. A "resolved" alert does not prove that a problem is over, because an exporter that
    stops also resolves its alerts.

    name: Free text of 1 to 200 printable characters. models: The affected models, empty = all.
    """

    fingerprint: str
    name: str
    state: str
    starts_ms: int
    models: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        checks.name("fingerprint", self.fingerprint)
        checks.label("name", self.name)
        checks.one_of("state", self.state, STATES)
        checks.time_ms("starts_ms", self.starts_ms)
        for model in self.models:
            checks.name("models", model)
