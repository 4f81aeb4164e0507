"""What engines said of themselves when somebody asked, beside what gateways report.

Owns the value. It is a second witness for people and for the record; nothing is planned by it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineView:
    """Requests that the engines of one model run and have waiting, at `at_ms`; why: it is not
    known, "" if it is."""

    running: float = 0.0
    waiting: float = 0.0
    at_ms: int = 0
    why: str = ""
