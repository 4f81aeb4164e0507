"""Limits on the sizes and waiting times that one client may use.

`wire.body_memory` limits all request bodies together.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Limits of one connection in real seconds and bytes. idle_s: time between two requests.
    head_s, body_s: time until a request's head or body is complete. write_s: time in which the
    client does not read. slack_bytes: a chunked body may take twice `body_bytes` plus these bytes
    on the wire."""

    head_bytes: int = 32 * 1024
    head_s: float = 10.0
    body_bytes: int = 16 * 1024 * 1024
    body_s: float = 60.0
    idle_s: float = 75.0
    write_s: float = 30.0
    slack_bytes: int = 64 * 1024
