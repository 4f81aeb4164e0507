"""The engines' own report of their load, in addition to gateway telemetry. It is displayed and
recorded; no plan depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineView:
    """Running and waiting requests of one model's engines at `at_ms`. error: why the numbers are
    unknown, "" if they are known."""

    running: float = 0.0
    waiting: float = 0.0
    at_ms: int = 0
    error: str = ""
