"""What a client may take of a server: sizes and times.

All bodies together have a bound of their own (`wire.budget`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Real seconds and bytes. idle_s: of a connection between requests. write_s: how long a client
    may not read. slack_bytes: what chunked encoding may add to a body beyond twice its size."""

    head_bytes: int = 32 * 1024
    head_s: float = 10.0
    body_bytes: int = 16 * 1024 * 1024
    body_s: float = 60.0
    idle_s: float = 75.0
    write_s: float = 30.0
    slack_bytes: int = 64 * 1024
