"""Load that the engines themselves report, in addition to gateway telemetry.

It is shown to people and recorded; no plan depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineView:
    """Running and waiting requests of one model's engines at `at_ms`. error: why they are not
    known, "" if they are."""

    running: float = 0.0
    waiting: float = 0.0
    at_ms: int = 0
    error: str = ""
